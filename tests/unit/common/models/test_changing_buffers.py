"""Buffers of a user's models that forward passes change: their names in checkpoints."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from common.map.pair_variables import ParameterMap, VariablePair
from common.map.transformation import parse_transformation
from common.models.changing_buffers import merge_buffers

SETTINGS: Any = SimpleNamespace(buffers="equal")
MODELS: Any = SimpleNamespace(
    parameter_map=ParameterMap([VariablePair("layer/mean", parse_transformation("mean"))], layer_pairs=[])
)


def merge(torch: dict[str, bool], keras: dict[str, bool]) -> dict[str, bool]:
    descriptions: Any = {"torch": SimpleNamespace(buffers=torch), "tf": SimpleNamespace(buffers=keras)}
    return merge_buffers(SETTINGS, {"mean": np.zeros(2)}, MODELS, descriptions)


@pytest.mark.parametrize("side", ["torch", "tf"])
def test_a_buffer_that_depends_on_the_examples_on_one_side_does_so_on_both(side: str) -> None:
    assert merge({"mean": side == "torch"}, {"layer/mean": side == "tf"}) == {"mean": True}
    assert merge({"mean": False}, {"layer/mean": False}) == {"mean": False}


@pytest.mark.parametrize(
    ("torch", "keras", "named"), [({"calls": True}, {}, "torch"), ({}, {"layer/calls": True}, "tf")]
)
def test_a_buffer_without_a_counterpart_is_refused(torch: dict[str, bool], keras: dict[str, bool], named: str) -> None:
    with pytest.raises(
        UserError, match=rf"^model.{named}: forward passes change \S*calls, which has no counterpart; p"
    ):
        merge(torch, keras)
