"""Variables that have no counterpart: whether they may be each other's."""

import pytest

from common.map.description import ModelDescription, VariableDescription
from common.map.pair_models import PairedModels
from common.map.pair_variables import ParameterMap
from common.models.unpaired_variables import has_only_missing_layers

Shapes = dict[str, tuple[int, ...]]


def describe(shapes: Shapes) -> ModelDescription:
    variables = {name: VariableDescription(name, shape, trainable=True) for name, shape in shapes.items()}
    return ModelDescription([], variables, [], has_channels=False)


@pytest.mark.parametrize(
    ("torch", "keras", "expected"),
    [
        ({"norm.weight": (8,), "norm.bias": (8,)}, {}, True),
        ({"norm.weight": (8,)}, {"batch_norm/gamma": (8,)}, True),
        ({"fc.weight": (16, 8)}, {"dense/kernel": (8, 32)}, True),
        ({"c_fc.weight": (8, 16)}, {"dense/kernel": (8, 16)}, False),  # a layer of an unknown kind
        ({"positions": (1, 5, 8)}, {"embedding/embeddings": (5, 8)}, False),
    ],
)
def test_matrices_of_equal_sizes_may_be_counterparts(torch: Shapes, keras: Shapes, expected: bool) -> None:
    parameter_map = ParameterMap([], [], [*torch], [*keras])
    models = PairedModels(describe(torch), describe(keras), parameter_map, {}, None)
    assert has_only_missing_layers(models) == expected
