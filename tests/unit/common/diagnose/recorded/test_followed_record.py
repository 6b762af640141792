"""Tests of the weights that a script takes from a record of the other framework."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.followed_record import FollowedRecord
from common.diagnose.recorded.recorded_model import RecordedModel
from common.errors import UserError
from tests.unit.common.diagnose.recorded.test_variable_pairs import Layers, build_model

LAYERS = ("fc1", "fc2")  # of the script, in the order of their calls


def _open(model: RecordedModel) -> FollowedRecord:
    """Return the record of a model whose weights are zeros."""
    weights = {name: np.zeros(facts["shape"], np.float32) for name, facts in model.facts["variables"].items()}
    side: Any = SimpleNamespace(
        model=model,
        read_weights=lambda _: weights,
        record=SimpleNamespace(directory="records/old", steps=[1]),
        read_layer_calls=lambda *_: {},
        unflattened_shapes={},
    )
    followed = FollowedRecord.__new__(FollowedRecord)
    followed.side, followed._map_file = side, None
    return followed


def _follow(defined: tuple[str, ...]) -> FollowedRecord:
    """Follow the record of a Keras model with two layers of one size. defined: the script's layers, as defined."""
    keras = build_model(
        is_torch=False, layers=[("Dense", name, {"kernel": [4, 4]}, "") for name in ("dense", "dense_1")]
    )
    followed = _open(keras)
    model = _build_torch(defined)
    arrays = {name: np.zeros((4, 4), np.float32) for name in model.facts["variables"]}
    followed.compute_weights(model, arrays)
    return followed


def _build_torch(layers: tuple[str, ...]) -> Any:
    return build_model(is_torch=True, layers=[("Linear", name, {"weight": [4, 4]}, "") for name in layers])


def test_layers_that_are_called_in_the_order_of_their_definition_have_their_weights() -> None:
    _follow(LAYERS).check_order(_build_torch(LAYERS))


def test_layers_that_are_called_in_another_order_have_those_of_others() -> None:
    with pytest.raises(UserError, match=r"calls its layers in another order .* 2 variables, such as fc1\.weight"):
        _follow(LAYERS[::-1]).check_order(_build_torch(LAYERS))


@pytest.mark.parametrize("source", ["", "conv"])
def test_a_compiled_model_that_flattens_images_is_refused(source: str) -> None:
    """It has no sources, and does not show the order of the features."""
    torch: Layers = [("Conv2d", "conv", {"weight": [4, 3, 3, 3]}, ""), ("Linear", "fc", {"weight": [2, 16]}, source)]
    keras: Layers = [("Conv2D", "conv", {"kernel": [3, 3, 3, 4]}, ""), ("Dense", "fc", {"kernel": [16, 2]}, "conv")]
    model, recorded = build_model(is_torch=True, layers=torch), build_model(is_torch=False, layers=keras)
    recorded.facts["layers"][1]["unflattened_shape"] = [2, 2, 4]
    followed = _open(recorded)
    arrays = {name: np.zeros(facts["shape"], np.float32) for name, facts in model.facts["variables"].items()}
    if source:
        followed.compute_weights(model, arrays)
    else:
        with pytest.raises(UserError, match="fc receives flattened features, and a compiled model does not show"):
            followed.compute_weights(model, arrays)
