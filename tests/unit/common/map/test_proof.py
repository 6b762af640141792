"""Tests of the proof that need no framework: both sides compute with NumPy."""

import tracemalloc
from collections.abc import Collection, Mapping
from typing import cast

import numpy as np

from common.map.description import Arrays, ComputedPass, ModelDescription, VariableDescription
from common.map.pair_variables import ParameterMap, VariablePair
from common.map.proof import prove_models
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
        for name, array in weights.items():
            self.matrices[name][...] = array
        products = (inputs @ matrix for inputs, matrix in zip(self.inputs, self.matrices.values(), strict=True))
        return ComputedPass({"output": sum(products, np.zeros((2, SIZE)))}, {})

    def gradients(self, projections: Mapping[str, np.ndarray]) -> Arrays:
        """Return the gradients of the matrices."""
        return {name: inputs.T @ projections["output"] for name, inputs in zip(self.matrices, self.inputs, strict=True)}


def describe(side: NumpySide) -> ModelDescription:
    """Describe the model of a side."""
    variables = {name: VariableDescription(name, matrix.shape, True) for name, matrix in side.matrices.items()}
    return ModelDescription([], variables, [], has_channels=False)


def test_a_proof_keeps_the_weights_and_one_result_of_each_side() -> None:
    torch_side, keras_side = NumpySide("weight"), NumpySide("kernel")
    names = zip(keras_side.matrices, torch_side.matrices, strict=True)
    parameter_map = ParameterMap([VariablePair(keras, parse_transformation(torch)) for keras, torch in names], [])
    initial_weights = torch_side.weights()
    sides, descriptions = (torch_side, keras_side), (describe(torch_side), describe(keras_side))
    tracemalloc.start()
    try:
        proof = prove_models(*cast("tuple[Side, Side]", sides), *descriptions, parameter_map, initial_weights, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not proof.errors
    weights_size = sum(array.nbytes for array in initial_weights.values())
    # The drawn weights and one result of each side, and copies of two arrays while they are compared.
    assert peak < 3.7 * weights_size, peak / weights_size
