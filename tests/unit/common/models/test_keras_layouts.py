"""Tests of the layouts of parameters in Keras: what a model's spec lists, and what is refused."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.config.models import CustomModelSettings
from common.errors import UserError
from common.models.keras_layouts import list_keras_layouts
from common.models.spec import ModelSpec, load_spec
from tests.conftest import MakeConfig

SHAPES = {"fc.weight": (3, 2), "fc.bias": (3,)}


def list_layouts(make_config: MakeConfig, hf_config: dict[str, Any]) -> dict[str, str]:
    spec = load_spec(object.__new__(CustomModelSettings))
    optimizer = make_config("optimizer=muon", "optimizer.semantics=keras").optimizer
    return list_keras_layouts(optimizer, spec, hf_config, SHAPES)


def test_layouts_are_the_steps_of_the_parameter_map(make_config: MakeConfig) -> None:
    texts = {"dense/kernel": "fc.weight | transpose 1 0", "dense/bias": "fc.bias", "norm/mean": "norm.mean[0:2]"}
    assert list_layouts(make_config, {"map": texts}) == {"fc.weight": "transpose 1 0"}
    second_bias = {"map": {"a": "fc.weight", "b": "fc.bias + x.bias"}}  # which is not trained
    assert list_layouts(make_config, second_bias) == {}
    alone = {"map": None, "factories": {"tf": "m:f"}, "shapes": {name: [*shape] for name, shape in SHAPES.items()}}
    assert list_layouts(make_config, alone) == {}


@pytest.mark.parametrize(
    ("hf_config", "problem"),
    [
        ({"map": {"a": "fc.weight[0:2]", "b": "fc.bias"}}, ", but one variable is fc.weight[0:2], not one whole"),
        ({"map": {"a": "fc.weight | rows 0 2", "b": "fc.bias"}}, ", but one variable is fc.weight | rows 0 2, not one"),
        ({"map": {"a": "fc.weight", "b": "fc.bias, x.bias"}}, ", but one variable is fc.bias, x.bias, not one whole"),
        ({"map": {"a": "fc.weight"}}, ", and fc.bias has none; set optimizer.semantics to aligned"),
        ({"map": None, "factories": {"torch": "m:f"}}, ", and the model has no Keras side that names them; set"),
    ],
)
def test_variables_that_are_no_whole_parameter_are_refused(
    make_config: MakeConfig, hf_config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError) as error:
        list_layouts(make_config, hf_config)
    start = "optimizer.kind=muon: Keras's update needs the layout of each variable in Keras"
    assert str(error.value).startswith(start + problem)


def test_a_spec_of_an_extension_may_lack_transformations(make_config: MakeConfig) -> None:
    optimizer = make_config("optimizer=adafactor", "optimizer.semantics=keras").optimizer
    with pytest.raises(UserError, match="the model has no Keras side"):
        list_keras_layouts(optimizer, cast(ModelSpec, SimpleNamespace()), {}, SHAPES)
