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
    return any("=" not in argument and is_record(Path(argument)) for argument in arguments)


def parse_record_arguments(arguments: Sequence[str]) -> RecordOptions:
    """Return the options of a diagnosis of two records. Raise UserError for a mistake in the arguments."""
    paths = [argument for argument in arguments if "=" not in argument]
    keys = [argument for argument in arguments if "=" in argument]
    for argument in keys:
        if argument.partition("=")[0].lstrip("+") not in RECORD_KEYS:
            known = ", ".join(RECORD_KEYS)
            raise UserError(f"{argument}: no key for two records, which train nothing; the keys are {known}")
    if len(paths) != 2:
        raise UserError(f"{paths[0]}: pass two records, such as records/old records/new")
    for path in paths:
        if Path(path).is_dir() and not is_record(Path(path)):
            raise UserError(
                f"{path}: not a record, and the other directory is one; compare a record with a run by "
                "python -m common.compare old=RECORD RUN_DIR"
            )
    options = compose_diagnose_options(keys)
    map_file = None if options.map is None else Path(options.map)
    return RecordOptions(Path(paths[0]), Path(paths[1]), map_file, Path(options.output))
