"""What a source of text gives: rows that are read anew, and checked, each time that they are asked for."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from common.config.data import TextColumnSettings
from common.data.build_progress import show_progress
from common.data.required_columns import RequiredColumns
from common.data.text.label_types import OTHER_LABELS, PLURALS, Label, normalize_label
from common.errors import UserError

log = logging.getLogger("lockstep")

NumberedRows = Iterable[tuple[int, Sequence[Any]]]  # (line or row, from 1; the values of the columns)

COLUMNS = [("data.label", "label"), ("data.premise", "premise"), ("data.hypothesis", "hypothesis")]
MAX_LABELS = 100_000  # different ones of a split, which are held: more than any classification has


@dataclass(frozen=True)
class RowReader:
    """What is read from start to end, such as a file. Errors call its row n `at` + n, such as "train.csv:12"."""

    at: str
    read: Callable[[], NumberedRows]


@dataclass(frozen=True)
class TextRows:
    """The rows of one split: a label, a premise and, for pairs, a hypothesis each. They are never held.

    key: the config key of the split, for errors.
    untyped: CSV and TSV, where "1" may be an integer and "True" a boolean.
    """

    key: str
    columns: RequiredColumns
    parts: Sequence[RowReader]
    untyped: bool = False

    @classmethod
    def of(cls, key: str, at: str, examples: Sequence[Sequence[Any]]) -> "TextRows":
        """Rows in memory: (label, premise) or (label, premise, hypothesis) each. `key`, `at`: see Rows and Part."""
        columns = COLUMNS[: max(map(len, examples), default=len(COLUMNS))]
        return cls(key, columns, [RowReader(at, lambda: enumerate(examples, 1))])

    def __iter__(self) -> Iterator[tuple[str, int, Label | None, Sequence[str]]]:
        """(place, number, label, texts) of each row; the label is None where there is no gold label.

        Raises UserError for values of the wrong type. Errors call the row place + number.
        """
        (label_key, label_name), *text_columns = self.columns
        kind: type | None = None
        for part in self.parts:
            for number, (value, *texts) in part.read():
                label = normalize_label(value, self.untyped)
                if label is not None:
                    if type(label) is not kind:
                        kind = _label_type(f"{part.at}{number}: ", f"{label_name!r} ({label_key})", label, kind)
                    for column, text in zip(text_columns, texts, strict=True):
                        if not isinstance(text, str) or not text.isascii():
                            _check_text(f"{part.at}{number}: ", column, text)
                yield part.at, number, label, texts


@dataclass(frozen=True)
class TextSource:
    """Both splits of a corpus.

    names: the classes as the data names them, by their integer labels; None where the labels are all that is known.
    classes: the classes in the order of the model's outputs, where the config gives one.
    """

    train: TextRows
    validation: TextRows
    names: list[str] | None
    classes: list[str] | None = None


@dataclass(frozen=True)
class RowSurvey:
    """What reading all rows of a split once has shown.

    labels: each label with the place of the first row that has it, in the order of these rows.
    """

    labels: dict[Label, str]
    examples: int  # rows with a gold label
    dropped: int  # rows without


def list_required_columns(data: TextColumnSettings) -> RequiredColumns:
    """The columns to read: the label, the premise and, for pairs, the hypothesis."""
    columns = [("data.label", data.label), ("data.premise", data.premise)]
    return columns if data.hypothesis is None else [*columns, ("data.hypothesis", data.hypothesis)]


def survey_rows(rows: TextRows) -> RowSurvey:
    """Read and check all rows. Raises UserError for the first that is wrong, and where there are none."""
    labels: dict[Label, str] = {}
    examples = dropped = 0
    empty = rows.columns[1:]
    for at, number, label, texts in show_progress(rows, f"checking {rows.key}"):
        if label is None:
            dropped += 1
            continue
        examples += 1
        if label not in labels:
            labels[label] = f"{at}{number}"
            if len(labels) > MAX_LABELS:
                raise UserError(
                    f"data.label: more than {MAX_LABELS} classes in {rows.key}; set it to the column that holds the "
                    "classes"
                )
        if empty:
            columns = zip(rows.columns[1:], texts, strict=True)
            empty = [column for column, text in columns if column in empty and not text.strip()]
    if not examples and not dropped:
        raise UserError(f"{rows.key}: no examples; add rows, or set it to another file")
    if not examples:
        raise UserError(f"{rows.key}: no example with a gold label ({dropped} rows without one); see data.label")
    for key, name in empty:
        log.warning("%s: every text of %r (%s) is empty", rows.key, name, key)
    return RowSurvey(labels, examples, dropped)


def _label_type(at: str, column: str, label: Any, expected: type | None) -> type:
    """The type of a label, which must be that of those before it."""
    if isinstance(label, float):
        raise UserError(f"{at}{column} is {label}; {OTHER_LABELS}")
    if type(label) not in PLURALS:
        raise UserError(f"{at}{column} is {type(label).__name__}; {OTHER_LABELS}")
    if expected is not None:
        mixed = " and ".join(sorted({PLURALS[type(label)], PLURALS[expected]}))
        raise UserError(f"{at}{mixed} are mixed in {column}; use one type")
    return type(label)


def _check_text(at: str, column: tuple[str, str], text: Any) -> None:
    key, name = column
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        remedy = "remove the row or fill it in" if text is None else f"set {key} to a column of text"
        raise UserError(f"{at}{name!r} ({key}) is {kind}, not a string; {remedy}")
    if re.search("[\ud800-\udfff]", text):
        raise UserError(f"{at}{name!r} ({key}) has a lone surrogate; no tokenizer reads it, remove it")
