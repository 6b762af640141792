"""The noise of a model's layers, which a process measures on a computation with perturbed arrays."""

import numpy as np
import pytest

from common.diagnose.layer_match import LayerMatch
from common.diagnose.observation import CallNoise, Observation, measure_perturbation
from common.map.description import RecordedCall

X = np.ones((2, 3))


def observe(calls: dict[str, RecordedCall]) -> Observation:
    return Observation([X], [X], calls, {}, {"weight": X})


def test_the_noise_of_each_layer_is_measured() -> None:
    original = observe({"a": RecordedCall(X, X), "b": RecordedCall(None, X), "c": RecordedCall(X, X)})
    perturbed = observe({"a": RecordedCall(X, X * (1 + 1e-6)), "b": RecordedCall(X, X[:1])})
    report = measure_perturbation(original, perturbed)
    assert (report.noise["a"].received, report.noise["a"].returned) == (0, pytest.approx(1e-6, rel=1e-3))
    assert report.noise["b"] == report.noise["c"] == CallNoise(None, None)
    assert (report.outputs, report.losses, report.gradients) == (original.outputs, original.losses, original.gradients)


def test_several_layers_have_the_noise_of_the_first_input_and_of_the_last_output() -> None:
    noise = {"query": CallNoise(1, 2), "key": CallNoise(3, 4), "out": CallNoise(5, 6)}
    match = LayerMatch("attention", "", "out", "attention", entries_a=("query", "key"))
    assert match.get_call_of_a(noise) == CallNoise(1, 6)
    assert match.paths_a == ["query", "key", "out"] and match.paths_b == ["attention"]
