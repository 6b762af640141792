"""Export of a run or a record as a bundle: one file with what a comparison and a diagnosis on another machine need.

A diagnosis trains a run again. It needs the config, the rows, the summary, the checkpoints, the data and the initial
weights, but not the final model, the logs and TensorBoard's files. The bundle of a record holds all of its files.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common.config.compose import read_complete_values
from common.config.saved_config import CONFIG
from common.data.atomic_directory import MANIFEST, read_manifest
from common.errors import UserError, report_write_errors
from common.recording.record_format import RECORD
from common.recording.record_reader import is_record, open_record
from common.recording.tensor_file import check_regular_file
from common.records import bundle
from common.records.bundle import INPUTS, write_bundle
from common.records.files import read_json_object
from common.records.summary import SUMMARY_FILE, read_final_summary
from common.run.checkpoint import CHECKPOINTS_DIRECTORY, list_checkpoints, open_checkpoint
from common.run.checkpoint_state import STATE_FILE
from common.run.inputs import PREPARED
from common.run.packed_inputs import DATA_DIRECTORY, WEIGHTS_DIRECTORY, check_formats, list_formats, verify_inputs

log = logging.getLogger("lockstep")

SUFFIX = ".zip"
PROFILE = "profile/rank-0.json.gz"
ROWS = ("metrics.jsonl", "evals.jsonl", "traffic.jsonl")
Members = dict[str, Path]  # name in the bundle -> file


def export_bundle(source: Path, out: Path | None) -> tuple[Path, Counter[str]]:
    """Write a run or a record to one file. Return the file, and the bytes of each part of it.

    Args:
        source: The directory of a finished run, or of a record.
        out: The file to create; None creates one in the current directory, named after `source`.

    Raises:
        UserError: The run or record is not complete, or the file cannot be written.
    """
    out = out or Path(f"{source.resolve().name}{SUFFIX}")
    if os.path.lexists(out):
        raise UserError(f"{out}: exists; choose another path, or remove it")
    is_of_record = is_record(source)
    members = _list_record(source) if is_of_record else _list_run(source)
    formats = {} if is_of_record else _find_formats(source)
    for file in members.values():
        check_regular_file(file)
    sizes = Counter[str]()
    for name, file in members.items():
        sizes[_name_part(name, is_of_record)] += file.stat().st_size
    with report_write_errors(out):
        write_bundle(out, bundle.RECORD if is_of_record else bundle.RUN, members, formats)
    return out, sizes


def _list_record(source: Path) -> Members:
    """Return the files of a record. Raise UserError if one is damaged."""
    members: Members = {}
    for rank in open_record(source).ranks:
        steps = [step["step"] for step in rank.facts["steps"]]
        files = [rank.directory / RECORD, rank.start.path, *(rank.open_step(step).path for step in steps)]
        members |= {str(file.relative_to(source)): file for file in files}
    return members


def _list_run(run_dir: Path) -> Members:
    """Return the files of a finished run that a diagnosis reads, its data and its initial weights."""
    summary = read_final_summary(run_dir) if run_dir.is_dir() else None
    if summary is None:
        raise UserError(
            f"{run_dir}: neither a finished run, which has {SUMMARY_FILE}, nor a record; pass its directory"
        )
    data, weights = _find_inputs(run_dir)
    verify_inputs(data, weights, summary)
    optional = [run_dir / name for name in (*ROWS[1:], PROFILE)]
    files = [run_dir / CONFIG, run_dir / SUMMARY_FILE, run_dir / ROWS[0], *filter(Path.exists, optional)]
    members = {str(file.relative_to(run_dir)): file for file in files}
    members |= dict(_list_directory(data, f"{INPUTS}/{DATA_DIRECTORY}"))
    members |= dict(_list_directory(weights, f"{INPUTS}/{WEIGHTS_DIRECTORY}"))
    for directory in list_checkpoints(run_dir):
        try:
            checksums = open_checkpoint(directory).state["checksums"]
        except UserError as error:
            log.warning("%s: left out", error)
        else:
            prefix = f"{CHECKPOINTS_DIRECTORY}/{directory.name}"
            members |= {f"{prefix}/{name}": directory / name for name in (*checksums, STATE_FILE)}
    return members


def _find_inputs(run_dir: Path) -> tuple[Path, Path]:
    """Return the directories of a run's data and initial weights. Raise UserError if the run does not name them."""
    packed = run_dir / INPUTS
    if packed.is_dir():  # the run comes from a bundle itself
        return packed / DATA_DIRECTORY, packed / WEIGHTS_DIRECTORY
    if not (run_dir / PREPARED).is_file():
        raise UserError(
            f"{run_dir}: has no {PREPARED}, which names its data; make the bundle of a run of this version of Lockstep"
        )
    paths = read_json_object(run_dir / PREPARED)
    data, weights = paths.get("cache"), paths.get("initial")
    if not isinstance(data, str) or not isinstance(weights, str):
        raise UserError(f"{run_dir / PREPARED}: damaged: names no data or no initial weights; start the run again")
    return Path(data), Path(weights)


def _find_formats(run_dir: Path) -> dict[str, int]:
    """Return the formats of a run's data and initial weights. Raise UserError if they are of another version."""
    values = read_complete_values(run_dir / CONFIG)
    if (run_dir / INPUTS).is_dir():
        check_formats(run_dir, values)
    return list_formats(values)


def _list_directory(directory: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield the files that the manifest of a directory lists, and the manifest, by their names in the bundle."""
    for name in (*read_manifest(directory)["checksums"], MANIFEST):
        yield f"{prefix}/{name}", directory / name


def _name_part(name: str, is_of_record: bool) -> str:
    """Return the part of a bundle that a member belongs to, for a reader of the sizes."""
    if is_of_record:
        return "record"
    if name.startswith(f"{INPUTS}/"):
        return "data" if name.startswith(f"{INPUTS}/{DATA_DIRECTORY}/") else "initial weights"
    return "checkpoints" if name.startswith(f"{CHECKPOINTS_DIRECTORY}/") else "config, rows and summary"
