"""The environments in which a run has trained: a run that resumes with other versions or on another device says so.

A checkpoint holds the history of its run, so that the history is kept if another run resumes from it.
"""

from collections.abc import Sequence
from typing import TypedDict

from common.recording.environment import THREAD_FLAGS, list_differences, read_environment
from common.recording.record_format import Environment
from common.records.summary import EnvironmentChange, RunFacts


class EnvironmentStretch(TypedDict):
    """Consecutive steps of a run that were trained in one environment.

    Attributes:
        step: The first step of the stretch.
        framework: "torch" or "tf".
        environment: Versions, device and flags.
        changes: Differences from the earlier environments of the run, such as "torch 2.13.0 to 2.14.1".
    """

    step: int
    framework: str | None
    environment: Environment
    changes: list[str]


def extend_history(history: Sequence[EnvironmentStretch], facts: RunFacts, step: int) -> list[EnvironmentStretch]:
    """Return the history of a run that continues in the environment of this process.

    Args:
        history: The history in the checkpoint that the run starts from; empty for a new run, and for a checkpoint of an
            earlier version, which had none.
        facts: The facts about the run, with its environment.
        step: The first step that this process trains.
    """
    environment, framework = read_environment(facts), facts["framework"]
    # A run that resumed from the checkpoint may have rewritten it, with its own environment.
    history = [stretch for stretch in history if stretch["step"] < step]
    changes = []
    if history:
        # The other framework may have trained the last steps.
        last = next((stretch for stretch in reversed(history) if stretch["framework"] == framework), history[-1])
        versions = {
            name: version for stretch in history for name, version in stretch["environment"]["versions"].items()
        }
        previous: Environment = {**last["environment"], "versions": versions}
        differences = list_differences(previous, environment, last["framework"] == framework, THREAD_FLAGS)
        changes = [f"{difference.name} {difference.a} to {difference.b}" for difference in differences]
        if not changes and last["framework"] == framework:
            return history
    return [*history, EnvironmentStretch(step=step, framework=framework, environment=environment, changes=changes)]


def list_changes(history: Sequence[EnvironmentStretch]) -> list[EnvironmentChange]:
    """Return the first step of each environment that differs from the earlier ones, with the differences."""
    return [
        EnvironmentChange(step=stretch["step"], changes=stretch["changes"]) for stretch in history if stretch["changes"]
    ]


def is_history(value: object) -> bool:
    """Check whether a value of state.json, which may come from somebody else, is a history."""
    return isinstance(value, list) and all(_is_stretch(entry) for entry in value)


def _is_stretch(entry: object) -> bool:
    match entry:
        case {
            "step": int(),
            "framework": str(),
            "environment": {"versions": dict(versions), "device": str(), "flags": dict()},
            "changes": list(changes),
        }:
            return all(isinstance(text, str) for text in [*versions.values(), *changes])
        case _:
            return False
