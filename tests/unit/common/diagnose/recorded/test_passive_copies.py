"""Tests of copies within a model that the script does not train."""

from typing import Any

import pytest

from common.diagnose.recorded.passive_copies import list_passive_copies, remove_passive_copies
from common.diagnose.recorded.recorded_model import RecordedModel

SHAPES = {"conv.weight": [8, 3, 3, 3], "conv.bias": [8]}


def _build(parts: dict[str, bool], called: tuple[str, ...]) -> RecordedModel:
    """Return a model. parts: whether each part is trained; called: the parts whose layer the script calls."""
    facts: Any = {
        "name": "Model",
        "layers": [
            {"path": f"{part}.conv", "kind": "Conv2d", "variables": {"weight": f"{part}.conv.weight"}}
            for part in called
        ],
        "variables": {
            f"{part}.{name}": {"shape": shape, "dtype": "float32", "trainable": is_trained}
            for part, is_trained in parts.items()
            for name, shape in SHAPES.items()
        },
        "tied": [],
    }
    return RecordedModel(True, facts)


@pytest.mark.parametrize(
    ("parts", "called", "copies"),
    [
        ({"encoder": True, "momentum": False}, ("encoder", "momentum"), {"momentum"}),
        ({"encoder": True, "average": True}, ("encoder",), {"average"}),
        ({"first": True, "second": True}, ("first", "second"), set()),
        ({"first": False, "second": False}, ("first", "second"), set()),
    ],
)
def test_copies_are_frozen_or_not_called(parts: dict[str, bool], called: tuple[str, ...], copies: set[str]) -> None:
    model = _build(parts, called)
    passive = list_passive_copies(model)
    assert {name.split(".")[0] for name in passive} == copies
    assert all(copied == name.replace(next(iter(copies)), "encoder") for name, copied in passive.items())


def test_copies_that_the_other_model_lacks_are_removed() -> None:
    model = _build({"encoder": True, "momentum": False}, ("encoder", "momentum"))
    alone = _build({"encoder": True}, ("encoder",))
    removed = remove_passive_copies(model, alone)
    assert [*removed.facts["variables"]] == ["encoder.conv.weight", "encoder.conv.bias"]
    assert [layer["path"] for layer in removed.facts["layers"]] == ["encoder.conv"]
    assert remove_passive_copies(model, model) is model
    assert remove_passive_copies(alone, model) is alone
