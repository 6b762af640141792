"""Tests of trained variables without a counterpart in the other model."""

from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.findings import Stage
from common.diagnose.recorded.stages.initial_weights import _report_unpaired


def _record(name: str, shapes: dict[str, list[int]]) -> Any:
    model = {"variables": {path: {"shape": shape} for path, shape in shapes.items()}, "tied": [], "layers": []}
    return SimpleNamespace(
        name=name, title=name.upper(), is_torch=name == "a", trainable={*shapes},
        batches=SimpleNamespace(count_examples=lambda _: [8]), record=SimpleNamespace(facts={"model": model}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recurrent_units", "causes", "omission"),
    [
        (4, [], "no counterparts were found of conv.weight of A and kernel of B, though they may have some"),
        (3, ["other_sizes"], ""),
    ],
)
def test_variables_of_as_many_elements_may_be_counterparts(
    recurrent_units: int, causes: list[str], omission: str
) -> None:
    """One script multiplies joined inputs by one matrix, and the other one each by its own."""
    a = _record("a", {"conv.weight": [8, 6]})
    b = _record("b", {"kernel": [2, 8], "recurrent_kernel": [recurrent_units, 8]})
    models = SimpleNamespace(unpaired_a=["conv.weight"], unpaired_b=["kernel", "recurrent_kernel"])
    pair: Any = SimpleNamespace(a=a, b=b, sides=(a, b), steps=[1], models=models, find_used=lambda side: side.trainable)
    stage = Stage("initial weights")
    _report_unpaired(stage, pair)
    assert [cause.cause for cause in stage.causes] == causes
    assert omission in stage.omission
    assert bool(stage.omission) == bool(omission)
