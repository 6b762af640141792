"""Arguments of the command common.diagnose for two records of training scripts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.diagnose.arguments import compose_diagnose_options
from common.errors import UserError
from common.recording.record_reader import is_record

RECORD_KEYS = ("map", "output")


@dataclass(frozen=True)
class RecordOptions:
    """The two records, the map file if there is one, and the directory of the report."""

    a: Path
    b: Path
    map: Path | None
    output: Path


def has_records(arguments: Sequence[str]) -> bool:
    """Check whether an argument is the directory of a record."""
    return any(map(is_record, _split(arguments)[0]))


def parse_record_arguments(arguments: Sequence[str]) -> RecordOptions:
    """Return the options of a diagnosis of two records. Raise UserError for a mistake in the arguments.

    arguments: the arguments of the command. One of them is a record at least, as `has_records` checks.
    """
    paths, overrides = _split(arguments)
    for override in overrides:
        if override.partition("=")[0].lstrip("+") not in RECORD_KEYS:
            allowed = " or ".join(RECORD_KEYS)
            raise UserError(f"{override}: not an option for records, which are not trained again; use {allowed}")
    if len(paths) != 2:
        directories = "1 directory" if len(paths) == 1 else f"{len(paths)} directories"
        raise UserError(f"{paths[0]}: got {directories}; pass two records, such as records/old records/new")
    for path in paths:
        if path.is_dir() and not is_record(path):
            raise UserError(
                f"{path}: not a record, but the other directory is one; to compare a run with a record, use "
                "python -m common.compare NAME=RECORD RUN_DIR"
            )
    options = compose_diagnose_options(overrides)
    return RecordOptions(paths[0], paths[1], None if options.map is None else Path(options.map), Path(options.output))


def _split(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Split arguments into paths and overrides KEY=VALUE."""
    overrides = [argument for argument in arguments if "=" in argument]
    return [Path(argument) for argument in arguments if argument not in overrides], overrides
