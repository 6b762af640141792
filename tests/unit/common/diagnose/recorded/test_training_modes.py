"""Tests of layers that only one of two scripts calls in evaluation mode."""

from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.findings import Stage
from common.diagnose.recorded.training_modes import compare_modes

LAYERS = ("norm", "head")


def _make_side(name: str, modes: dict[str, bool]) -> Any:
    """Return a side. modes: whether each BatchNorm of it is in training mode, and the model."""
    layers = [
        {"path": path, "kind": "BatchNorm2d", "attributes": {}, "training": training, "variables": {}}
        for path, training in modes.items()
        if path != "model"
    ]
    return SimpleNamespace(
        name=name, layers=layers, is_training=modes["model"], is_torch=True, trainable=set(),
        get_facts=lambda step: {"evaluation_mode": not modes["model"]},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("b", "paired", "blamed"),
    [
        ({"model": False, "norm": False, "head": False}, LAYERS, None),  # A's model is in training mode, its norms not
        ({"model": True, "norm": True, "head": False}, LAYERS, "norm"),
        ({"model": False, "norm": False, "head": False}, ("norm",), "head"),
    ],
)
def test_frozen_norms_of_both_scripts_are_no_difference(
    b: dict[str, bool], paired: tuple[str, ...], blamed: str | None
) -> None:
    sides = _make_side("a", {"model": True, "norm": False, "head": False}), _make_side("b", b)
    matches = [SimpleNamespace(path_a=path, path_b=path) for path in paired]
    pair: Any = SimpleNamespace(a=sides[0], b=sides[1], sides=sides, steps=[1], models=SimpleNamespace(layers=matches))
    stage = Stage("hyperparameters")
    compare_modes(stage, pair)
    assert [blamed in cause.sentence for cause in stage.causes if blamed] == ([True] if blamed else [])
    assert bool(stage.causes) == (blamed is not None)
