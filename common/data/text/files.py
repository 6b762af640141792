"""JSON, CSV, TSV and Parquet files as a source of text."""

import logging
from pathlib import Path
from typing import Any

from common.config.data import Files
from common.data.identity import file_identity, source_keys
from common.data.text.formats import find_file, is_json_array, json_array, json_lines, parquet, separated
from common.data.text.rows import Rows, Source, collect, named_columns

log = logging.getLogger("lockstep")


def read(data: Files) -> Source:
    """Read both splits. Raises UserError, which names the file and the line."""
    train = _read_file("data.train", data.train, data)
    validation = _read_file("data.validation", data.validation, data)
    if Path(data.train).expanduser().samefile(Path(data.validation).expanduser()):
        log.warning("data.validation is the same file as data.train: it shows nothing about new examples")
    return Source(train, validation, names=data.classes, classes=data.classes)


def identity(data: Files) -> dict[str, Any]:
    """What names the corpus: the keys, and the files' paths, sizes and times of change."""
    files = {"train": data.train, "validation": data.validation}
    found = {split: file_identity(find_file(f"data.{split}", name)[0]) for split, name in files.items()}
    return {**source_keys(data), **found}


def _read_file(key: str, name: str, data: Files) -> Rows:
    path, suffix = find_file(key, name)
    columns = named_columns(data)
    if suffix == ".parquet":
        return collect(key, f"{path}: row ", parquet(path, columns), columns)
    if suffix in (".csv", ".tsv"):
        return collect(key, f"{path}:", separated(path, suffix, columns), columns, untyped=True)
    if is_json_array(path):
        return collect(key, f"{path}: row ", json_array(path, columns), columns)
    return collect(key, f"{path}:", json_lines(path, columns), columns)
