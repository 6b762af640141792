"""Tests of the proof that need no framework: both sides compute with NumPy."""

import tracemalloc
from collections.abc import Collection, Mapping
from typing import cast

import numpy as np
import pytest

from common.map import array_groups
from common.map.description import Arrays, ComputedPass, GradientSummary, ModelDescription, VariableDescription
from common.map.gradient_summary import summarize_gradients
from common.map.pair_variables import ParameterMap, VariablePair
from common.map.proof import Proof, prove_models
from common.map.side import Side
from common.map.transformation import parse_transformation

COUNT, SIZE = 16, 128


class NumpySide:
    """A side whose model adds products of its inputs with matrices. Like a process, it gives copies of its arrays."""

    def __init__(self, prefix: str) -> None:
        """Draw the matrices."""
        stream = np.random.default_rng(0)
        self.matrices = {f"{prefix}{number}": stream.standard_normal((SIZE, SIZE)) for number in range(COUNT)}
        self.inputs = stream.standard_normal((COUNT, 2, SIZE))
        self.result: object = None
        self.read_names: list[str] = []  # of the gradients that `read_gradients` has returned
        self.training_factor = 1.0  # by which gradients in training mode are multiplied

    def send(self, function: str, **arguments: object) -> None:
        """Compute the result of a call."""
        self.result = getattr(self, function)(**arguments)

    def receive(self) -> object:
        """Return the result, and do not keep it."""
        result, self.result = self.result, None
        return result

    def call(self, function: str, **arguments: object) -> object:
        """Return the result of a call."""
        self.send(function, **arguments)
        return self.receive()

    def weights(self, names: Collection[str] | None = None) -> Arrays:
        """Return copies of matrices."""
        return {name: matrix.copy() for name, matrix in self.matrices.items() if names is None or name in names}

    def changed_weights(self) -> Arrays:
        """Return no matrices, because passes do not change them."""
        return {}

    def compute(self, weights: Arrays, training: bool) -> ComputedPass:
        """Set the matrices and return the output."""
        self.set_weights(weights)
        self.is_training = training
        products = (inputs @ matrix for inputs, matrix in zip(self.inputs, self.matrices.values(), strict=True))
        return ComputedPass({"output": sum(products, np.zeros((2, SIZE)))}, {})

    def set_weights(self, weights: Arrays) -> None:
        """Set matrices."""
        for name, array in weights.items():
            self.matrices[name][...] = array

    def compute_gradients(self, projections: Mapping[str, np.ndarray]) -> dict[str, GradientSummary]:
        """Return summaries of the gradients, which `read_gradients` computes again."""
        self.factors = projections["output"] * (self.training_factor if self.is_training else 1)
        summaries = (summarize_gradients({name: self._compute_gradient(name)}) for name in self.matrices)
        return {name: summary for summary_by_name in summaries for name, summary in summary_by_name.items()}

    def read_gradients(self, names: Collection[str]) -> Arrays:
        """Return gradients."""
        self.read_names += names
        return {name: self._compute_gradient(name) for name in names}

    def _compute_gradient(self, name: str) -> np.ndarray:
        gradient: np.ndarray = self.inputs[[*self.matrices].index(name)].T @ self.factors
        return gradient


def describe(side: NumpySide) -> ModelDescription:
    """Describe the model of a side."""
    variables = {name: VariableDescription(name, matrix.shape, True) for name, matrix in side.matrices.items()}
    return ModelDescription([], variables, [], has_channels=False)


def prove(*sides: NumpySide) -> tuple[Proof, float]:
    """Prove that two models are the same. Return the proof, and its largest memory as a multiple of the weights."""
    torch_side, keras_side = sides
    names = zip(keras_side.matrices, torch_side.matrices, strict=True)
    parameter_map = ParameterMap([VariablePair(keras, parse_transformation(torch)) for keras, torch in names], [])
    initial_weights = torch_side.weights()
    descriptions = describe(torch_side), describe(keras_side)
    tracemalloc.start()
    try:
        proof = prove_models(*cast("tuple[Side, Side]", sides), *descriptions, parameter_map, initial_weights, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return proof, peak / sum(array.nbytes for array in initial_weights.values())


def test_a_proof_keeps_the_weights_and_only_few_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_groups, "GROUP_SIZE", 2 * SIZE * SIZE * 8)
    proof, peak = prove(NumpySide("weight"), NumpySide("kernel"))
    assert not proof.errors
    # The drawn weights, and two groups of two of the 16 gradients of both sides
    assert peak < 1.8, peak


@pytest.mark.parametrize(("factor", "reads"), [(1, 1), (2, 2)])
def test_gradients_are_compared_once_if_they_are_the_same_in_both_modes(factor: float, reads: int) -> None:
    sides = NumpySide("weight"), NumpySide("kernel")
    for side in sides:
        side.training_factor = factor
    proof, _ = prove(*sides)
    assert not proof.errors
    assert [sorted(side.read_names) for side in sides] == [sorted([*side.matrices] * reads) for side in sides]


def test_gradients_that_differ_only_in_training_mode_are_found() -> None:
    sides = NumpySide("weight"), NumpySide("kernel")
    sides[1].training_factor = 1 + 1e-8
    proof, _ = prove(*sides)
    assert "in training mode the outputs agree and gradients differ" in proof.errors[0]
