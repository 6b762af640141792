"""Tests of trained variables without a counterpart in the other model."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.recorded.stages.initial_weights import _describe_calls, _report_unpaired
from tests.unit.common.diagnose.recorded.operations.traces import Script


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


def _trace(weights: list[str], is_fresh: bool = False) -> Any:
    """Return the operations of layers that use these weights. is_fresh: whether a line initializes another layer."""
    script = Script(x=np.ones((4, 3)))
    named = {name: script.name(f"weight/{name}", script.call("ones", np.ones, shape=(3,))) for name in {*weights}}
    x = script.inputs["x"]
    for name in weights:
        x = script.call("mul", np.multiply, x, named[name])
    if is_fresh:
        new = script.call("uniform_", np.ones, shape=(3,))
        x = script.call("linear", np.multiply, x, new)
    trace = script.finish(script.call("sum", np.sum, x))
    for operation in trace["operations"]:
        if operation["name"] in ("uniform_", "linear"):
            operation["file"], operation["line"], operation["code"] = "train.py", 7, "x = nn.Linear(3, 3)(x)"
    return trace


@pytest.mark.parametrize("lacking", ["a", "b"])
@pytest.mark.parametrize(
    ("uses", "is_fresh", "words"),
    [
        (["fc1", "fc1"], False, "{0} uses fc1 2 times, and the other script 1: it calls a layer in the place of "),
        (["fc1"], True, "{0} makes a layer anew in each forward pass, untrained: linear in train.py:7 `x = nn.Linear("),
        (["fc1"], False, None),
    ],
)
def test_what_a_script_calls_in_place_of_a_layer_that_it_lacks_is_named(
    uses: list[str], is_fresh: bool, words: str | None, lacking: str
) -> None:
    traces = {lacking: _trace(uses, is_fresh), "ab".replace(lacking, ""): _trace(["fc1", "fc2"])}
    a, b = (SimpleNamespace(record=SimpleNamespace(ranks=[SimpleNamespace(operations=traces[x])])) for x in "ab")
    models = SimpleNamespace(variables=[SimpleNamespace(title="fc1", names_a=["fc1"], names_b=["fc1"])])
    described = _describe_calls(cast(Any, SimpleNamespace(a=a, b=b, sides=(a, b), models=models)), lacking)
    assert described.startswith(f"; {words.format(lacking.upper())}") if words else described == ""
