"""Layers of a model whose tokens are one sequence: [1, t, features] in A, [t, features] in B."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.findings import EQUAL, Stage
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import convert_calls, unpack_tokens
from common.diagnose.model_observations import ModelObservations
from common.diagnose.observation import Observation, measure_perturbation
from common.diagnose.stages.activations import compare_layers
from common.map.description import RecordedCall, name_call

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


@pytest.mark.parametrize("settings_b", [{}, {"epsilon": 1.0}])
def test_outputs_of_a_recurrent_cell_are_a_cause_only_if_its_settings_differ(settings_b: dict[str, object]) -> None:
    layer = LayerMatch("GRU", "cell", "cell", "cell", {"epsilon": 0.5} if settings_b else {}, settings_b)
    causes = compare_repeated(layer, TOKENS, np.sin(TOKENS))
    assert bool(causes) is bool(settings_b)
