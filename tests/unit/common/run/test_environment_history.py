"""The environments in which a run has trained."""

from typing import Any

import pytest

from common.records.summary import RunFacts
from common.run.environment_history import EnvironmentStretch, extend_history, is_history, list_changes


def describe(framework: str = "torch", device: str = "cpu", threads: int = 1, **versions: str) -> RunFacts:
    return {
        "framework": framework,
        "strategy": "single",
        "replicas": 1,
        "versions": {"numpy": "2.1", **versions},
        "environment": {"device": device, "flags": {"onednn": True, "threads": threads}},
    }


def resume(*starts: tuple[int, RunFacts]) -> list[EnvironmentStretch]:
    """Return the history of a run that started several times, from the step before each step."""
    history: list[EnvironmentStretch] = []
    for step, facts in starts:
        history = extend_history(history, facts, step)
    return history


def test_a_resumption_in_another_environment_is_a_change() -> None:
    history = resume((1, describe(torch="2.13")), (5, describe(torch="2.14", device="H100")))
    assert list_changes(history) == [{"step": 5, "changes": ["torch 2.13 to 2.14", "device cpu to H100"]}]
    assert is_history(history)


def test_a_resumption_in_the_same_environment_is_none() -> None:
    facts = describe(torch="2.13")
    assert resume((1, facts), (5, facts)) == resume((1, facts))
    assert list_changes(resume((1, facts), (5, describe(torch="2.13", threads=2)))) == []
    assert list_changes(resume((5, facts))) == []  # a checkpoint of an earlier version has no history


def test_the_versions_of_a_framework_are_remembered_while_the_other_one_trains() -> None:
    history = resume((1, describe(torch="2.13")), (5, describe("tf", tensorflow="2.20")), (7, describe(torch="2.14")))
    assert [stretch["step"] for stretch in history] == [1, 5, 7]
    assert list_changes(history) == [{"step": 7, "changes": ["torch 2.13 to 2.14"]}]


def test_an_environment_that_trained_no_step_is_forgotten() -> None:
    """A run that resumes may save the checkpoint again from which it started."""
    first, other = describe(torch="2.13"), describe(torch="2.14")
    assert resume((1, first), (5, other), (5, first)) == resume((1, first))


@pytest.mark.parametrize(
    "change",
    [
        {"step": "1"},
        {"framework": None},
        {"environment": {}},
        {"environment": {"versions": {"torch": 2}, "device": "cpu", "flags": {}}},
        {"changes": [1]},
    ],
    ids=str,
)
def test_a_wrong_history_is_recognized(change: dict[str, Any]) -> None:
    (stretch,) = resume((1, describe()))
    assert not is_history([{**stretch, **change}])
    assert not is_history({})
