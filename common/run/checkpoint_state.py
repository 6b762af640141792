"""state.json of a checkpoint: its fields, and their checks. A checkpoint may come from somebody else."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import NotRequired, TypedDict, cast

from common.models.initial_weights import WEIGHTS
from common.records.files import is_count, is_number
from common.run.environment_history import EnvironmentStretch, is_history
from common.training.state import PlateauValues, Position, PositionValues, Score

FORMAT = 2  # the format of state.json; in format 1 the config keys in the settings have older names
OPTIMIZER_FILE, STATE_FILE = "optimizer.safetensors", "state.json"


class CheckpointState(TypedDict):
    """The contents of state.json that Lockstep reads. The file also has a seal, the checksum of state.json itself."""

    format: int
    position: PositionValues
    config_fingerprint: str
    settings: dict[str, object]  # curve settings by the full name of the config key
    environments: NotRequired[list[EnvironmentStretch]]  # the run's environments; earlier versions lack the field
    stream_blocks: NotRequired[dict[str, str]]  # checksums of the blocks of data.stream that were read, by number
    checksums: dict[str, str]  # file name -> checksum


def check_state(state: Mapping[str, object], step: int | None) -> CheckpointState:
    """Return the contents of state.json if every field that Lockstep reads has a valid value.

    Args:
        state: the JSON object in the file.
        step: the step in the name of the checkpoint's directory; None if the name has none.

    Raises:
        ValueError: a field is missing or has another type or an impossible value. The message names the field.
    """
    if is_count(state.get("format")) and not 1 <= cast(int, state["format"]) <= FORMAT:
        raise ValueError(f"has format {state['format']}, and this version of Lockstep reads 1 to {FORMAT}")
    for name, is_valid, expected in STATE_CHECKS:
        if not is_valid(state.get(name)):
            raise ValueError(f"'{name}' in {STATE_FILE} must {expected}")
    if not is_history(state.get("environments", [])):
        raise ValueError(f"'environments' in {STATE_FILE} must list the environments of the run")
    if not _is_stream(state.get("stream_blocks", {})):
        raise ValueError(f"'stream_blocks' in {STATE_FILE} must have a checksum for each block")
    position = cast(dict[str, object], state["position"])
    if unknown := position.keys() - {field.name for field in fields(Position)}:
        raise ValueError(f"'position' in {STATE_FILE} has the unknown field {min(unknown)[:100]!r}")
    for name, is_valid, expected in POSITION_CHECKS:
        if (name in position or name in REQUIRED) and not is_valid(position.get(name)):
            raise ValueError(
                f"'position.{name}' in {STATE_FILE} must {expected}, found {str(position.get(name))[:100]}"
            )
    if step is not None and position["step"] != step:
        raise ValueError(f"{STATE_FILE} is of step {position['step']}")
    return cast(CheckpointState, state)


def _is_non_negative(value: object) -> bool:
    return is_number(value) and value is not None and 0 <= value < math.inf


def _is_validation(value: object) -> bool:
    return value is None or (
        isinstance(value, dict) and "loss" in value and all(is_number(number) for number in value.values())
    )


def _is_score(value: object) -> bool:
    return value is None or (
        isinstance(value, dict)
        and value.keys() == Score.__annotations__.keys()
        and isinstance(value["metric"], str)
        and is_number(value["value"])
    )


def _is_plateau(value: object) -> bool:
    return value is None or (
        isinstance(value, dict)
        and value.keys() == PlateauValues.__annotations__.keys()
        and _is_non_negative(value["factor"])
        and 0.0 <= float(value["factor"]) <= 1.0
        and is_number(value["best"], null=True)
        and is_count(value["bad_evaluations"])
        and is_count(value["cooldown"])
    )


def _is_stream(value: object) -> bool:
    return isinstance(value, dict) and all(
        number.isdecimal() and isinstance(checksum, str) for number, checksum in value.items()
    )


def _has_checksums(value: object) -> bool:
    return (
        isinstance(value, dict)
        and {WEIGHTS, OPTIMIZER_FILE} <= value.keys()
        and all(isinstance(checksum, str) for checksum in value.values())
    )


# For each field: its name, the check of its value, and the words after "must" in the error.
Checks = tuple[tuple[str, Callable[[object], bool], str], ...]
STATE_CHECKS: Checks = (
    ("format", is_count, "be a whole number"),
    ("position", lambda value: isinstance(value, dict), "be an object"),
    ("settings", lambda value: isinstance(value, dict), "be an object"),
    ("checksums", _has_checksums, f"have the checksums of {WEIGHTS} and {OPTIMIZER_FILE}"),
)
REQUIRED = ("step", "plan_position", "examples")  # fields of a position that state.json must have; others have defaults
POSITION_CHECKS: Checks = (
    *((name, is_count, "be a whole number") for name in ("step", "plan_position", "examples", "tokens", "waited")),
    ("seconds", _is_non_negative, "be a number of seconds"),
    ("validation", _is_validation, "be null or have numbers, the loss among them"),
    ("best", lambda value: is_number(value, null=True), "be a number or null"),
    ("score", _is_score, "be null or have a metric and its value"),
    ("plateau", _is_plateau, "be null or the progress of schedule=plateau"),
)
