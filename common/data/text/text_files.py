"""JSON, CSV, TSV and Parquet files as a source of text."""

import glob
import logging
from functools import partial
from pathlib import Path
from typing import Any

from common.config.data import FilesSettings
from common.data.identity import collect_source_keys, identify_file
from common.data.required_columns import RequiredColumns
from common.data.text.csv_rows import find_dialect, read_csv_rows, read_parquet_rows
from common.data.text.json_rows import is_json_array, read_json_array, read_json_lines
from common.data.text.text_rows import RowReader, TextRows, TextSource, list_required_columns
from common.data.text.utf8_files import is_gzip
from common.errors import UserError

log = logging.getLogger("lockstep")

SEPARATED = (".csv", ".tsv")
TEXT_SUFFIXES = (".jsonl", ".json", *SEPARATED)
SUFFIXES = f"{', '.join(TEXT_SUFFIXES)} (each also + .gz) or .parquet"


def read(data: FilesSettings) -> TextSource:
    """Both splits, to be read. Raises UserError, which names the file and the line."""
    train, validation = find_files("data.train", data.train), find_files("data.validation", data.validation)
    source = TextSource(
        _rows("data.train", train, data), _rows("data.validation", validation, data), data.classes, data.classes
    )
    if shared := {path.resolve() for path in train} & {path.resolve() for path in validation}:
        what = "is the same file as" if len(train) == len(validation) == 1 else f"has {len(shared)} of the files of"
        log.warning("data.validation %s data.train: it shows nothing about new examples", what)
    return source


def identify(data: FilesSettings) -> dict[str, Any]:
    """What names the corpus: the keys, and the files' paths, sizes and times of change."""
    splits = {"train": data.train, "validation": data.validation}
    found = {name: [identify_file(path) for path in find_files(f"data.{name}", splits[name])] for name in splits}
    return {**collect_source_keys(data), **found}


def find_files(key: str, name: str) -> list[Path]:
    """The files that a path names, sorted: a file; those in a directory whose suffix is known; those of a glob.

    Raises UserError unless there is one, and all can be read.
    """
    if not name:
        raise UserError(f"{key}: has no value; give {key}=...")
    path = Path(name).expanduser()
    if path.is_dir():
        found = [file for file in path.iterdir() if _is_known(file) and not file.name.startswith(".")]
    elif path.exists() or not glob.has_magic(name):
        found = [path]
    else:
        found = [file for file in map(Path, glob.glob(str(path), recursive=True)) if not file.is_dir()]
    if not found:
        what = "no data files in" if path.is_dir() else "no file matches"
        raise UserError(f"{key}: {what} {name}; use {SUFFIXES}")
    for file in found:
        _check_file(key, str(file) if len(found) > 1 else name, file)
    return sorted(found)


def _check_file(key: str, name: str, file: Path) -> None:
    if not file.is_file():
        raise UserError(f"{key}: {'not a file' if file.exists() else 'no such file'}: {name}")
    if not _is_known(file):
        raise UserError(f"{key}: unknown suffix: {name}; use {SUFFIXES}")
    if file.stat().st_size == 0:
        raise UserError(f"{key}: empty file: {name}")


def _suffix(path: Path) -> str:
    """In lower case, without .gz."""
    return (path.with_suffix("") if is_gzip(path) else path).suffix.lower()


def _is_known(path: Path) -> bool:
    return _suffix(path) in TEXT_SUFFIXES or (_suffix(path) == ".parquet" and not is_gzip(path))


def _rows(key: str, paths: list[Path], data: FilesSettings) -> TextRows:
    columns = list_required_columns(data)
    untyped = {_suffix(path) in SEPARATED: path for path in paths}
    if len(untyped) > 1:
        raise UserError(
            f"{key}: {untyped[True]} has labels of text, {untyped[False]} has types; give files of one format"
        )
    return TextRows(key, columns, [_part(path, columns) for path in paths], untyped=True in untyped)


def _part(path: Path, columns: RequiredColumns) -> RowReader:
    suffix = _suffix(path)
    if suffix == ".parquet":
        return RowReader(f"{path}: row ", partial(read_parquet_rows, path, columns))
    if suffix in SEPARATED:
        return RowReader(f"{path}:", partial(read_csv_rows, path, find_dialect(path, suffix, columns), columns))
    if is_json_array(path):
        return RowReader(f"{path}: row ", partial(read_json_array, path, columns))
    return RowReader(f"{path}:", partial(read_json_lines, path, columns))
