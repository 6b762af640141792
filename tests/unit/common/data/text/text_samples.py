"""Files of text for tests, and corpora as lists."""

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.config.data import DataSettings, FilesSettings
from common.data.text import text_corpus
from common.errors import UserError


@dataclass
class SplitLists:
    """The examples of a split as parallel lists."""

    premises: list[str]
    hypotheses: list[str] | None
    labels: list[int]
    dropped: int


@dataclass
class CorpusLists:
    """A corpus in memory."""

    train: SplitLists
    validation: SplitLists
    classes: list[str]


def read_corpus(data: DataSettings, classes: list[str] | None = None) -> CorpusLists:
    """Read a corpus with `text_corpus.read_corpus`, and list its examples."""
    corpus = text_corpus.read_corpus(data, classes)
    return CorpusLists(_list_examples(corpus.train), _list_examples(corpus.validation), corpus.classes)


def _list_examples(split: text_corpus.LabelledTexts) -> SplitLists:
    examples = list(split)
    columns = [list(column) for column in zip(*(texts for texts, _ in examples), strict=True)]
    assert len(examples) == len(split)
    return SplitLists(
        columns[0], columns[1] if len(columns) > 1 else None, [label for _, label in examples], split.dropped
    )


def write(path: Path, rows: list[tuple], columns: tuple[str, ...] = ("premise", "hypothesis", "label")) -> str:
    """Write rows in the format that the suffix names."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)}), path)
        return str(path)
    with (
        gzip.open(path, "wt", encoding="utf-8", newline="")
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8", newline="") as file
    ):
        if ".json" in path.name:
            file.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        elif ".csv" in path.name:
            csv.writer(file).writerows([columns, *rows])
        else:
            file.writelines("\t".join(map(str, row)) + "\n" for row in [columns, *rows])
    return str(path)


def files(train: str | Path, validation: str | Path | None = None, **keys: Any) -> FilesSettings:
    """Return the settings of files. Without a validation file both splits are the training file."""
    columns: dict[str, Any] = {"premise": "premise", "hypothesis": "hypothesis", "label": "label", "classes": None}
    places = {"train": str(train), "validation": str(validation or train)}
    return FilesSettings(**{"kind": "files", "allow_change": False, **columns, **places, **keys})


def read_text(path: Path, text: str | bytes, checkpoint: list[str] | None = None, **keys: Any) -> CorpusLists:
    """Write a file with this content and read it as a corpus."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_corpus(files(path, **keys), checkpoint)


def message(raised: pytest.ExceptionInfo[UserError]) -> str:
    """Return the text of an error. Check that it is one line."""
    text = str(raised.value)
    assert "\n" not in text
    return text
