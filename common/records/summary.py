"""summary.json: facts about a run, its end and its speed. While the run trains, running.json holds the facts."""

from collections.abc import Callable
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from common.errors import UserError
from common.records.files import is_count, is_number, read_json_object

RUNNING_FILE, SUMMARY_FILE = "running.json", "summary.json"
HELD_BYTES = ("parameter_bytes", "gradient_bytes", "slot_bytes")  # fields of ddp, zero and fsdp


class ReplicaStretch(TypedDict):
    """A stretch of steps with one number of replicas, from `step` on. The first stretch is listed too."""

    step: int
    replicas: int


class TrainerStretch(TypedDict):
    """A stretch of steps with one framework and strategy, from `step` on. The first stretch is listed too."""

    step: int
    trained_by: str


class EnvironmentChange(TypedDict):
    """The first step of a run in another environment, and what changed there, such as "torch 2.13.0 to 2.14.1"."""

    step: int
    changes: list[str]


class RunFacts(TypedDict):
    """The fields that are known before training. Earlier versions did not write all of them."""

    framework: str | None  # "torch" or "tf"; None for a run of another program, which has no summary.json
    strategy: str | None
    replicas: int | None
    restarts: NotRequired[int]
    started: NotRequired[str]  # local time, ISO 8601
    fingerprints: NotRequired[dict[str, str]]  # hashes of the content of "token_cache" and "initial_weights"
    plan_version: NotRequired[int]  # version of the function that orders the examples
    versions: NotRequired[dict[str, str]]  # versions of Python and of the packages that train
    hardware: NotRequired[dict[str, object]]
    environment: NotRequired[dict[str, object]]  # "device" and "flags", as a record has them
    environment_changed: NotRequired[list[EnvironmentChange]]  # each change, if the run resumed in another one
    batch_norm: NotRequired[str]  # the batch whose statistics BatchNorm uses: "replica" (its shard) or "global"


class Summary(RunFacts):
    """The contents of summary.json. Strategies add fields about themselves, which their documentation lists."""

    status: str  # "completed", "interrupted" or "failed"; "running" in running.json
    steps: NotRequired[int]
    examples_per_second: NotRequired[float | None]
    tokens_per_second: NotRequired[float | None]
    peak_memory_bytes: NotRequired[list[float | None] | None]  # peak memory of each replica
    parameter_bytes: NotRequired[list[float | None] | None]  # bytes of parameters that each replica holds between steps
    gradient_bytes: NotRequired[list[float | None] | None]  # bytes of gradients that each replica holds between steps
    slot_bytes: NotRequired[list[float | None] | None]  # bytes of optimizer slots and weight averages, as above
    bytes_sent: NotRequired[list[float | None] | None]  # bytes that each rank has sent
    messages_sent: NotRequired[list[int | None] | None]  # messages that each rank has sent
    compilations: NotRequired[int]
    compile_seconds: NotRequired[float]
    final_loss: NotRequired[float | None]
    accuracy: NotRequired[float | None]
    error: NotRequired[str]
    resumed_from: NotRequired[int | None]  # the step of the checkpoint
    replicas_changed: NotRequired[list[ReplicaStretch]]  # each number of replicas, if a resume changed it
    trained_by: NotRequired[list[TrainerStretch]]  # each trainer, if a resume changed it
    staleness: NotRequired[dict[str, int]]  # for each n, how many updates missed n updates of other workers


def find_summary_file(run_dir: Path) -> Path:
    """Return the path of summary.json, or of running.json if the run has not ended."""
    files = [run_dir / name for name in (SUMMARY_FILE, RUNNING_FILE)]
    return next((file for file in files if file.is_file()), files[0])


def read_final_summary(run_dir: Path) -> Summary | None:
    """Return the summary of a run that has ended; None if the run has none. Raise UserError if it is damaged."""
    file = run_dir / SUMMARY_FILE
    return read_summary(file) if file.exists() else None


def read_summary(file: Path) -> Summary:
    """Read summary.json or running.json. Raise UserError if it is damaged, or a field has the wrong type."""
    summary = read_json_object(file)
    for names, default, is_valid, expected in CHECKS:
        for name in names:
            value = summary.get(name, default)
            if not is_valid(value):
                raise UserError(f"{file}: '{name}' must {expected}, found {str(value)[:100]!r}")
    return cast(Summary, summary)


def _list_of(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a check for null or a list of valid values and nulls."""
    return lambda value: (
        value is None or (isinstance(value, list) and all(item is None or is_valid(item) for item in value))
    )


def _changes_of(key: str, is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a check for a list of objects with a step and a valid value at `key`."""

    def check(changes: object) -> bool:
        return isinstance(changes, list) and all(
            isinstance(change, dict) and is_count(change.get("step")) and is_valid(change.get(key))
            for change in changes
        )

    return check


def _is_histogram(value: object) -> bool:
    return isinstance(value, dict) and all(
        staleness.isdecimal() and is_count(count) for staleness, count in value.items()
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


# Names of fields; the value if one is absent, which is invalid if the field is required; the check; the error's words.
CHECKS: tuple[tuple[tuple[str, ...], object, Callable[[object], bool], str], ...] = (
    (("framework", "strategy", "status"), None, _is_text, "be a string"),
    (("started", "error", "batch_norm"), "", _is_text, "be a string"),
    (("replicas",), None, is_count, "be a whole number"),
    (("steps", "restarts", "plan_version", "compilations"), 1, is_count, "be a whole number"),
    (("resumed_from",), None, lambda value: value is None or is_count(value), "be a whole number or null"),
    (
        ("final_loss", "accuracy", "examples_per_second", "tokens_per_second"),
        None,
        lambda value: is_number(value, null=True),
        "be a number or null",
    ),
    (("compile_seconds",), 0.0, is_number, "be a number"),
    (("peak_memory_bytes", *HELD_BYTES, "bytes_sent"), None, _list_of(is_number), "be a list of numbers"),
    (("messages_sent",), None, _list_of(is_count), "be a list of whole numbers"),
    (("replicas_changed",), [], _changes_of("replicas", is_count), "list steps and numbers of replicas"),
    (("environment_changed",), [], _changes_of("changes", _is_list_of_texts), "list steps and what changed there"),
    (("trained_by",), [], _changes_of("trained_by", _is_text), "list steps and what trained from there"),
    (
        ("fingerprints", "versions", "hardware", "environment"),
        {},
        lambda value: isinstance(value, dict),
        "be an object",
    ),
    (("staleness",), {}, _is_histogram, "map whole numbers to their counts"),
)
