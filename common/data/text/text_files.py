"""JSON, CSV, TSV and Parquet files as a source of text."""

import glob
import logging
from functools import partial
from pathlib import Path

from common.config.data import FilesSettings
from common.data.identity import Identity, collect_source_keys, identify_file
from common.data.required_columns import RequiredColumns
from common.data.text.arrow_rows import read_parquet_rows
from common.data.text.csv_rows import find_dialect, read_csv_rows
from common.data.text.json_rows import is_json_array, read_json_array, read_json_lines
from common.data.text.text_rows import RowReader, TextRows, TextSource, list_required_columns
from common.data.text.utf8_files import is_gzip
from common.errors import UserError

log = logging.getLogger("lockstep")

SEPARATED = (".csv", ".tsv")
TEXT_SUFFIXES = (".jsonl", ".json", *SEPARATED)
SUFFIXES = f"{', '.join(TEXT_SUFFIXES)} (each also + .gz) or .parquet"


def read(data: FilesSettings) -> TextSource:
    """Return both splits, whose rows are read when they are iterated over.

    Raises:
        UserError: If there is no such file, or its header is wrong.
    """
    train, validation = find_files("data.train", data.train), find_files("data.validation", data.validation)
    source = TextSource(
        _open_rows("data.train", train, data),
        _open_rows("data.validation", validation, data),
        data_classes=data.classes,
        model_classes=data.classes,
    )
    if shared := {path.resolve() for path in train} & {path.resolve() for path in validation}:
        relation = "is the same file as" if len(train) == len(validation) == 1 else f"has {len(shared)} of the files of"
        log.warning("data.validation %s data.train: it shows nothing about new examples", relation)
    return source


def identify(data: FilesSettings) -> Identity:
    """Return the config keys and the identities of the files."""
    splits = {"train": data.train, "validation": data.validation}
    files = {name: [identify_file(path) for path in find_files(f"data.{name}", splits[name])] for name in splits}
    return {**collect_source_keys(data), **files}


def find_files(key: str, name: str) -> list[Path]:
    """Return the sorted files that the value of a config key names.

    A directory stands for its files with a known suffix, a glob for the matching files.

    Args:
        key: Config key, for errors.
        name: Path of a file or a directory, or a glob.

    Raises:
        UserError: If there is no file, or a file is empty or has an unknown suffix.
    """
    if not name:
        raise UserError(f"{key}: has no value; set {key}=...")
    path = Path(name).expanduser()
    if path.is_dir():
        files = [file for file in path.iterdir() if _has_known_suffix(file) and not file.name.startswith(".")]
    elif path.exists() or not glob.has_magic(name):
        files = [path]
    else:
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207  Path.glob takes no absolute pattern
        files = [file for file in map(Path, matches) if not file.is_dir()]
    if not files:
        problem = "no data files in" if path.is_dir() else "no file matches"
        raise UserError(f"{key}: {problem} {name}; use {SUFFIXES}")
    for file in files:
        _check_file(key, str(file) if len(files) > 1 else name, file)
    return sorted(files)


def _check_file(key: str, name: str, file: Path) -> None:
    if not file.is_file():
        raise UserError(f"{key}: {'not a file' if file.exists() else 'no such file'}: {name}")
    if not _has_known_suffix(file):
        raise UserError(f"{key}: unknown suffix: {name}; use {SUFFIXES}")
    if file.stat().st_size == 0:
        raise UserError(f"{key}: empty file: {name}")


def _get_suffix(path: Path) -> str:
    """Return the suffix of a file in lower case, without .gz."""
    return (path.with_suffix("") if is_gzip(path) else path).suffix.lower()


def _has_known_suffix(path: Path) -> bool:
    return _get_suffix(path) in TEXT_SUFFIXES or (_get_suffix(path) == ".parquet" and not is_gzip(path))


def _open_rows(key: str, paths: list[Path], data: FilesSettings) -> TextRows:
    columns = list_required_columns(data)
    untyped = {_get_suffix(path) in SEPARATED: path for path in paths}
    if len(untyped) > 1:
        raise UserError(
            f"{key}: {untyped[True]} has labels of text, {untyped[False]} has typed labels; use files of one format"
        )
    return TextRows(key, columns, [_open_reader(path, columns) for path in paths], untyped=True in untyped)


def _open_reader(path: Path, columns: RequiredColumns) -> RowReader:
    suffix = _get_suffix(path)
    if suffix == ".parquet":
        return RowReader(f"{path}: row ", partial(read_parquet_rows, path, columns))
    if suffix in SEPARATED:
        return RowReader(f"{path}:", partial(read_csv_rows, path, find_dialect(path, suffix, columns), columns))
    if is_json_array(path):
        return RowReader(f"{path}: row ", partial(read_json_array, path, columns))
    return RowReader(f"{path}:", partial(read_json_lines, path, columns))
