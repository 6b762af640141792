"""Layers of a model whose tokens are one sequence: [1, t, features] in A, [t, features] in B."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.findings import EQUAL, Stage
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import convert_calls, list_comparable_calls
from common.diagnose.model_observations import ModelObservations
from common.diagnose.observation import Observation, measure_perturbation
from common.diagnose.stages.activations import compare_layers
from common.diagnose.unpadded_tokens import unpack_tokens
from common.map.description import MOST_CALLS, RecordedCall, name_call

STREAM = np.random.default_rng(0)
REAL = (np.arange(5) < np.array([3, 5, 2])[:, None]).astype(int)
BATCH = {"attention_mask": REAL, "places": REAL.ravel().nonzero()[0]}
TOKENS = STREAM.standard_normal((10, 8))
WEIGHTS = {"norm.weight": STREAM.standard_normal(8), "norm.bias": STREAM.standard_normal(8)}
OUTPUTS = STREAM.standard_normal((3, 2))
LAYERS = [LayerMatch("", name, name, f"keras/{name}") for name in ("query", "key", "value", "out", "norm")]


@pytest.mark.parametrize("has_channels_first", [True, False])
def test_outputs_are_compared_in_the_layout_of_b(has_channels_first: bool) -> None:
    outputs_b = STREAM.standard_normal((2, 4, 5, 3))
    outputs_a = np.moveaxis(outputs_b, -1, 1) if has_channels_first else outputs_b[..., :2]
    a, b = (Observation([outputs], [], {}, {}, {}) for outputs in (outputs_a, outputs_b))
    noise = measure_perturbation(a, a)
    models = ModelObservations(a, noise, noise, b, b, [], {}, {})
    np.testing.assert_array_equal(models.outputs_of_a, outputs_b if has_channels_first else outputs_a)
    stage = compare_layers("activations", models)
    assert [cause.cause for cause in stage.causes] == ([] if has_channels_first else ["shape_of_outputs"])


def attend(real: np.ndarray, scale: float) -> np.ndarray:
    """Compute self-attention [t, 8] of the tokens in two heads."""
    heads = unpack_tokens(TOKENS, BATCH).reshape(3, 5, 2, 4)
    scores = np.einsum("nihd,njhd->nhij", heads, heads) * scale + np.where(real > 0, 0, -1e300)[:, None, None]
    attended = np.einsum("nhij,njhd->nihd", softmax(scores, -1), heads)
    return np.asarray(attended.reshape(15, 8)[BATCH["places"]])


def normalize(epsilon: float) -> np.ndarray:
    centered = TOKENS - TOKENS.mean(-1, keepdims=True)
    normalized = centered / np.sqrt(TOKENS.var(-1, keepdims=True) + epsilon)
    return np.asarray(normalized * WEIGHTS["norm.weight"] + WEIGHTS["norm.bias"])


def call_layers(real: np.ndarray = REAL, scale: float = 0.5, epsilon: float = 1e-12) -> dict[str, RecordedCall]:
    projections = {name: RecordedCall(TOKENS, TOKENS) for name in ("query", "key", "value")}
    return {
        **projections,
        "out": RecordedCall(attend(real, scale), TOKENS),
        "norm": RecordedCall(TOKENS, normalize(epsilon)),
    }


def compare(calls_b: dict[str, RecordedCall]) -> Stage:
    """Compare the correct layers in A with the layers in B."""
    calls_a = {
        name: RecordedCall(*(np.asarray(array)[None] for array in (call.received, call.returned)))
        for name, call in call_layers().items()
    }
    a = Observation([OUTPUTS], [], calls_a, {}, {})
    b = replace(a, calls={f"keras/{name}": call for name, call in calls_b.items()})
    assert convert_calls(LAYERS, a, b).keys() == {layer.path_b for layer in LAYERS}
    noise = measure_perturbation(a, a)
    return compare_layers("activations", ModelObservations(a, noise, noise, b, b, LAYERS, BATCH, WEIGHTS))


def test_the_same_layers_are_equal() -> None:
    stage = compare(call_layers())
    assert (stage.verdict, stage.causes) == (EQUAL, [])
    assert {check.tensor for check in stage.checks} >= {layer.title for layer in LAYERS}


@pytest.mark.parametrize(
    ("calls_b", "cause", "sentence"),
    [
        (call_layers(scale=1.0), "attention_scale", "is 1 / sqrt(head size) in A and no scale in B"),
        (call_layers(real=np.ones((3, 5))), "attention_mask", "is attention_mask in A and no mask in B"),
        (call_layers(epsilon=1e-5), "epsilon", "norm | keras/norm: epsilon is 1e-12 in A and 1e-05 in B"),
    ],
)
def test_a_fault_is_named(calls_b: dict[str, RecordedCall], cause: str, sentence: str) -> None:
    (known,) = compare(calls_b).causes
    assert (known.cause, known.confirmed) == (cause, True)
    assert sentence in known.sentence


def test_a_stride_that_changes_the_size_is_named_and_later_sizes_follow_from_it() -> None:
    images = np.random.default_rng(0).standard_normal((2, 8, 8, 3))
    halves = images[:, ::2, ::2]
    one, two = {"stride": (1, 1)}, {"stride": (2, 2)}
    matches = [
        LayerMatch("convolution", "first", "first", "first", one, two),
        LayerMatch("convolution", "second", "second", "second", two, one),
    ]
    a = Observation(
        [OUTPUTS], [], {"first": RecordedCall(images, images), "second": RecordedCall(images, halves)}, {}, {}
    )
    b = replace(a, calls={"first": RecordedCall(images, halves), "second": RecordedCall(halves, halves)})
    noise = measure_perturbation(a, a)
    stage = compare_layers("activations", ModelObservations(a, noise, noise, b, b, matches, {}, {}))
    assert [(cause.cause, cause.sentence) for cause in stage.causes] == [
        ("stride", "first: stride is (1, 1) in A and (2, 2) in B: its outputs have other sizes")
    ]


def compare_repeated(layer: LayerMatch, received_b: np.ndarray, returned_b: np.ndarray) -> list[tuple[str, str]]:
    """Compare three calls of a layer, each of which receives and returns the same in B."""
    matches = [replace(layer, path_a=name_call("cell", count), path_b=name_call("cell", count)) for count in range(3)]
    calls_a = {match.path_a: RecordedCall(TOKENS, TOKENS) for match in matches}
    a = Observation([OUTPUTS], [], calls_a, {}, {})
    b = replace(a, calls={path: RecordedCall(received_b, returned_b) for path in calls_a})
    noise = measure_perturbation(a, a)
    stage = compare_layers("activations", ModelObservations(a, noise, noise, b, b, matches, {}, {}))
    return [(cause.cause, cause.tensor) for cause in stage.causes]


def test_the_code_before_a_repeated_layer_is_explained_once() -> None:
    layer = LayerMatch("linear", "cell", "cell", "cell")
    assert compare_repeated(layer, TOKENS[:, ::-1], TOKENS) == [("reversed_axis", "input of cell")]


def observe_loop(received: list[np.ndarray], returned: list[np.ndarray], count: int = 0) -> Observation:
    """Return the observation of a model that calls `cell` with each of these arrays, and then a layer `head`."""
    pairs = zip(received, returned, strict=True)
    calls = {name_call("cell", index): RecordedCall(*pair) for index, pair in enumerate(pairs)}
    calls["head"] = RecordedCall(TOKENS, TOKENS)
    return Observation([OUTPUTS], [], calls, {}, {}, counts={"cell": count or len(received)})


def compare_loop(kind: str, a: Observation, b: Observation, unpaired: str = "") -> Stage:
    """Compare all calls of a layer and of the head that follows."""
    matches = list_comparable_calls([LayerMatch(kind, name, name, name) for name in ("cell", "head")], a, b)
    noise = measure_perturbation(a, a)
    return compare_layers(
        "activations", ModelObservations(a, noise, noise, b, b, matches, {}, {}, unpaired_a=[unpaired])
    )


def test_a_layer_that_differs_in_each_call_is_explained_once() -> None:
    a, b = observe_loop([TOKENS] * 3, [TOKENS] * 3), observe_loop([TOKENS] * 3, [TOKENS**2] * 3)
    assert [cause.tensor for cause in compare_loop("linear", a, b).causes] == ["cell"]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_recurrent_cell_that_returns_other_outputs_is_a_cause_once(first: int) -> None:
    tokens = list(STREAM.standard_normal((4, 10, 8)))
    a = observe_loop(tokens, tokens)
    calls = {
        name_call("cell", index): RecordedCall(token, np.sin(token) if index >= first else token)
        for index, token in enumerate(tokens)
    }
    stage = compare_loop("GRU", a, replace(a, calls={**a.calls, **calls}))
    expected = [("recurrent_layer", name_call("cell", first), False)]
    assert [(cause.cause, cause.tensor, cause.confirmed) for cause in stage.causes] == expected


def test_a_recurrent_cell_after_another_difference_is_no_cause() -> None:
    tokens = list(STREAM.standard_normal((3, 10, 8)))
    a = observe_loop([tokens[0]] * 3, tokens)
    b = observe_loop([tokens[0][:, ::-1]] * 3, [tokens[0], *np.sin(tokens[1:])])
    assert [cause.tensor for cause in compare_loop("GRU", a, b).causes] == ["input of cell"]


def test_all_calls_of_layers_that_one_model_lacks_are_known() -> None:
    a = observe_loop([TOKENS] * 2, [TOKENS + 1] * 2)
    b = replace(a, calls={**a.calls, **{name_call("cell", index): RecordedCall(TOKENS, TOKENS) for index in range(2)}})
    assert compare_loop("linear", a, b, unpaired="cell").causes == [], "one lacks the bias"
    received_a, received_b = STREAM.standard_normal((2, 2, 10, 8))
    calls_a, calls_b = {}, {}
    for index, (array_a, array_b) in enumerate(zip(received_a, received_b, strict=True)):
        calls_a[name_call("norm", index)] = RecordedCall(array_b, np.cos(array_a))
        calls_a[name_call("cell", index)] = RecordedCall(array_a, TOKENS)
        calls_b[name_call("cell", index)] = RecordedCall(array_b, TOKENS)
    a, b = (replace(a, calls={**calls, "head": RecordedCall(TOKENS, TOKENS)}) for calls in (calls_a, calls_b))
    assert compare_loop("linear", a, b, unpaired="norm").causes == []


@pytest.mark.parametrize("count", [MOST_CALLS, MOST_CALLS + 1])
def test_code_after_calls_that_are_not_compared_is_no_cause(count: int) -> None:
    tokens = list(STREAM.standard_normal((MOST_CALLS, 10, 8)))
    a, b = (observe_loop(tokens, returned, count) for returned in (tokens, list(np.sin(tokens))))
    b = replace(b, calls={**b.calls, "head": RecordedCall(np.cos(tokens[0]), TOKENS)})
    tensors = [cause.tensor for cause in compare_loop("linear", a, b).causes]
    assert tensors == (["cell", "input of head"] if count == MOST_CALLS else ["cell"])
