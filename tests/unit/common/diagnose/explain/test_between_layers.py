"""Code between two layers that adds, reverses or pools other arrays in B than in A."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.findings import Explanation

STREAM = np.random.default_rng(0)
X, ATTENDED = STREAM.standard_normal((2, 3, 5, 4))
NUMBERS = np.random.default_rng(1).standard_normal((4, 10))
POSITIONS = STREAM.standard_normal((1, 5, 4))
IDS = np.array([[3, 4, 0, 0, 0], [5, 1, 2, 9, 7], [8, 6, 1, 0, 0]])
LAST = IDS.astype(bool).sum(1) - 1


def explain(a: np.ndarray, b: np.ndarray, received_in_b: np.ndarray = X) -> list[tuple[str, str, bool]]:
    """Explain the input of the layer `head` after a layer `attention`, which received X in A."""
    outputs = [LayerOutput("attention", ATTENDED, X, received_in_b)]
    section = CodeSection("input of head", "head", a, b, outputs, {"ids": IDS}, {"positions": POSITIONS})
    return [(known.cause, known.sentence, known.confirmed) for known in explain_code(section)]


@pytest.mark.parametrize(
    ("a", "b", "cause", "words"),
    [
        (
            X + ATTENDED,
            ATTENDED,
            "residual",
            "the input of attention + the output of attention, B has the",
        ),
        (X + ATTENDED, X - ATTENDED, "addition", "B has the input of attention - the output of attention"),
        (np.tanh(X), np.tanh(X)[:, ::-1], "reversed_axis", "input of head is A's, reversed along axis 1"),
        (np.cos(X) + POSITIONS, np.cos(X), "constant_term", "B does not add positions"),
        (np.cos(X) + POSITIONS, np.cos(X) + POSITIONS[:, ::-1], "constant_term", "reversed along axis 1, positions"),
        (ATTENDED[:, 0], ATTENDED.mean(1), "pooling", "A has the first token, B the mean"),
        (ATTENDED[:, -1], ATTENDED[np.arange(3), LAST], "pooling", "B the last token where ids != 0 is 1"),
    ],
)
def test_the_operation_is_named(a: np.ndarray, b: np.ndarray, cause: str, words: str) -> None:
    ((known, sentence, confirmed),) = explain(a, b)
    assert (known, confirmed) == (cause, True)
    assert words in sentence


def test_another_array_for_all_examples_that_is_no_weight_is_not_confirmed() -> None:
    ((cause, sentence, confirmed),) = explain(np.cos(X) + POSITIONS, np.cos(X) + POSITIONS**2)
    assert (cause, confirmed) == ("constant_term", False)
    assert "but the same to every example" in sentence


def test_a_pooling_of_as_many_tokens_as_features_along_another_axis_is_named() -> None:
    features = STREAM.standard_normal((3, 8, 8))
    explanation = explain_alone(features.max(1), features.max(2), features)[0]
    assert explanation.cause == "pooling"
    assert explanation.sentence.endswith("A has the maximum along axis 1, B the maximum along axis 2")


def test_the_last_state_of_one_direction_is_named() -> None:
    """PyTorch's out[:, -1] has the first state of the backward direction, Keras's layer the last one."""
    states = STREAM.standard_normal((4, 6, 10))
    last = np.concatenate([states[:, -1, :5], states[:, 0, 5:]], 1)
    explanation = explain_alone(states[:, -1], last, states)[0]
    assert explanation.cause == "pooling" and explanation.confirmed
    assert explanation.sentence.endswith("in the elements 5 to 9 of axis 1: A has the last token, B the first token")


def test_a_sum_with_an_array_that_differs_before_is_no_cause() -> None:
    assert explain(X + ATTENDED, 2 * X + ATTENDED, received_in_b=2 * X) == []


def test_a_cross_layer_of_an_array_that_differs_before_is_no_cause() -> None:
    a, b = (x * ATTENDED + x for x in (X, np.cos(X)))
    assert explain(a, b, received_in_b=np.cos(X)) == []


@pytest.mark.parametrize("axis", [1, 2])
def test_gated_halves_in_another_order_are_named(axis: int) -> None:
    features = np.concatenate([X, ATTENDED], axis)
    a, b = np.tanh(X) * expit(ATTENDED), np.tanh(ATTENDED) * expit(X)
    (explanation,) = explain_alone(a, b, features)
    assert explanation.cause == "activation"
    assert (
        "A has tanh of the first half of the features, times sigmoid of the second half, B sig" in explanation.sentence
    )
    (unknown,) = explain_alone(a, np.cos(b) * expit(X), features)
    assert unknown.cause == "code_between_layers"


def test_what_is_not_known_has_its_place() -> None:
    ((cause, sentence, confirmed),) = explain(np.sin(X), np.cos(X))
    assert (cause, confirmed) == ("code_between_layers", False)
    assert sentence.startswith("between attention and head: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "axis", "expected"),
    [(0.5, -1, ("attention_scale", "no scale in A")), (1.0, 2, ("attention_softmax", "over the queries in B"))],
)
@pytest.mark.parametrize("is_flattened", [True, False])
def test_attention_is_found_with_an_added_array_and_relu(
    scale: float, axis: int, expected: tuple[str, str], is_flattened: bool
) -> None:
    query, key, value, added = STREAM.standard_normal((4, 3, 5, 8))
    arrays = []
    for factor, softmax_axis in ((1.0, -1), (scale, axis)):
        heads = [array.reshape(3, 5, 2, 4).swapaxes(1, 2) for array in (query, key, value)]
        weights = softmax(factor * heads[0] @ heads[1].swapaxes(2, 3), softmax_axis)
        result = np.maximum((weights @ heads[2]).swapaxes(1, 2).reshape(3, 5, 8) + added, 0)
        arrays.append(result.reshape(3, 40) if is_flattened else result)
    names = ("q", "k", "v", "skip")
    outputs = [LayerOutput(name, array) for name, array in zip(names, (query, key, value, added), strict=True)]
    a, b = arrays
    (explanation,) = explain_code(CodeSection("input of head", "head", a, b, outputs, {}))
    assert (explanation.cause, explanation.confirmed) == (expected[0], True)
    assert expected[1] in explanation.sentence


def test_the_output_of_a_layer_that_the_other_side_runs_later_is_an_order_of_layers() -> None:
    later = [LayerOutput("feed_forward", POSITIONS + X)]
    section = CodeSection(
        "input of norm", "norm", np.cos(X), np.cos(X) + POSITIONS + X, [], {}, reordered_outputs=later
    )
    ((cause, sentence),) = [(known.cause, known.sentence) for known in explain_code(section)]
    assert cause == "layer_order"
    assert "B adds the output of feed_forward, A does not: norm runs before a layer on one side" in sentence


def test_joined_arrays_are_explained_by_the_one_that_differs() -> None:
    joined = [np.concatenate([np.cos(X), last], -1) for last in (np.tanh(ATTENDED), np.maximum(ATTENDED, 0))]
    ((cause, sentence, _),) = explain(*joined)
    assert cause == "activation" and "A has tanh, B relu" in sentence


def test_pooled_windows_of_another_size_are_named() -> None:
    image = STREAM.standard_normal((2, 9, 9, 3))
    a = np.lib.stride_tricks.sliding_window_view(image, (2, 2), (1, 2))[:, ::2, ::2].max((-2, -1))
    b = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))[:, ::3, ::3].max((-2, -1))
    outputs = [LayerOutput("conv", image)]
    (explanation,) = explain_code(CodeSection("input of head", "head", a, b, outputs, {}))
    assert explanation.cause == "pooling" and "B has the max of windows of 3, stride 3" in explanation.sentence
    (explanation,) = explain_code(CodeSection("input of head", "head", np.cos(a), b, outputs, {}))
    assert explanation.cause == "shape" and "[2, 4, 4, 3] in A and [2, 3, 3, 3] in B" in explanation.sentence


def test_a_pooled_sum_with_an_array_that_differs_before_is_no_cause() -> None:
    a, b = (np.maximum(received + ATTENDED, 0).max(1) for received in (X, 2 * X))
    assert explain(a, b, received_in_b=2 * X) == []


def explain_alone(a: np.ndarray, b: np.ndarray, *outputs: np.ndarray) -> list[Explanation]:
    """Explain the input of a layer after layers with these outputs."""
    return explain_code(
        CodeSection("input of fc", "fc", a, b, [LayerOutput("layer", output) for output in outputs], {})
    )


@pytest.mark.parametrize(
    ("a", "b", "outputs"),
    [
        (NUMBERS.astype(np.float32), (NUMBERS * (1 + 1e-6)).astype(np.float32), []),
        (NUMBERS[:, None], NUMBERS[:, None] * (1 + 1e-10), []),
        (np.array([[2.0]]), np.array([[-0.8]]), []),
        (NUMBERS[:1], NUMBERS[:1] * np.where(np.arange(10) == 3, 1.7, 1.0), []),
        (NUMBERS[:2, :1], NUMBERS[2:, :1], [NUMBERS.reshape(2, 5, 4)[..., :1]]),
        (np.array([[0.25, 0.75]]), np.array([[0.4, 0.6]]), []),
        (np.array(1.0), np.array(2.0), []),
        (NUMBERS[0, :8], NUMBERS[1, :8], [np.random.default_rng(2).standard_normal((8, 4, 8))]),
        (NUMBERS, np.sin(NUMBERS), [np.full((4, 10), np.nan)]),
        (np.sin(NUMBERS), np.cos(NUMBERS), [NUMBERS, np.full((4, 10), np.inf)]),
    ],
)
def test_a_coincidence_is_no_explanation(a: np.ndarray, b: np.ndarray, outputs: list[np.ndarray]) -> None:
    (explanation,) = explain_alone(a, b, *outputs)
    assert (explanation.cause, explanation.confirmed) == ("code_between_layers", False)


def test_a_small_array_may_have_another_activation() -> None:
    a, b = np.tanh(NUMBERS[:, :1]), expit(NUMBERS[:, :1])
    (explanation,) = explain_alone(a, b, NUMBERS[:, :1])
    assert explanation.sentence == "between layer and fc: A has tanh, B sigmoid"
    (explanation,) = explain_alone(a, b)
    assert explanation.sentence == "before fc: A has tanh at the end, B sigmoid"


def test_attentions_of_one_variant_may_differ_by_rounding() -> None:
    query, key, value = np.random.default_rng(3).standard_normal((3, 2, 4, 8))
    a = softmax(query @ key.swapaxes(1, 2), -1) @ value
    assert explain_alone(a, a * (1 + 1e-10 * np.cos(a)), query, key, value) == []


def test_what_holds_for_a_part_is_said_of_the_part() -> None:
    in_part = np.isin(np.arange(10), (3, 4, 5))
    (explanation,) = explain_alone(NUMBERS, np.where(in_part, 2 * NUMBERS, NUMBERS))
    assert explanation.sentence == "input of fc, in the elements 3 to 5 of axis 1, is 2 times A's"
    padded = np.pad(NUMBERS, ((0, 0), (2, 0)))
    (explanation,) = explain_alone(padded, np.where(np.isin(np.arange(12), (5, 6)), np.tanh(padded), padded))
    assert "in the elements 5 to 6 of axis 1" in explanation.sentence


def test_masked_logits_do_not_hide_a_difference() -> None:
    masked = np.where(np.arange(10) < 5, NUMBERS, -1e9)
    (explanation,) = explain_alone(masked, np.where(np.arange(10) < 5, np.tanh(NUMBERS), -1e9))
    assert explanation.cause == "activation" and "elements 0 to 4 of axis 1" in explanation.sentence


def test_a_part_without_an_axis_of_one_token_keeps_the_place_of_its_elements() -> None:
    a = np.pad(STREAM.standard_normal((3, 1, 5)), ((0, 0), (0, 0), (2, 1)))
    b = a.copy()
    b[..., 3:5] += 1
    section = CodeSection("input of head", "head", a, b, [], {})
    assert {part.part for part in section.list_parts()} - {""} == {"in the elements 3 to 4 of axis 1"}
