"""Rows of labelled text: a label, a premise and, for sentence pairs, a hypothesis.

A row without a gold label (the annotators did not agree, say) has no class and is dropped later. Rows are read and
checked anew in every iteration, and never held in memory.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.config.data import TextColumnSettings
from common.data.build_progress import show_progress
from common.data.required_columns import RequiredColumns
from common.data.text.label_types import LABEL_REMEDY, PLURALS, Cell, Label, normalize_label
from common.errors import UserError

log = logging.getLogger("lockstep")

NumberedRows = Iterable[tuple[int, Sequence[Cell]]]  # (number of the line or row, from 1; values of the columns)

# The columns of examples in memory, each with the config key that errors name.
COLUMNS = [("data.label", "label"), ("data.premise", "premise"), ("data.hypothesis", "hypothesis")]
MAX_LABELS = 100_000  # distinct labels of a split, which are held in memory; no classification has more


@dataclass(frozen=True)
class RowReader:
    """Reader of one file, or of another source that is read from start to end."""

    location: str  # prefix of a row's number in errors: "train.csv:" in "train.csv:12"
    read: Callable[[], NumberedRows]


@dataclass(frozen=True)
class TextRows:
    """The rows of one split."""

    key: str  # config key of the split, for errors
    columns: RequiredColumns  # the columns of the label, the premise and, for pairs, the hypothesis
    readers: Sequence[RowReader]
    untyped: bool = False  # whether the rows are from CSV or TSV: "1" may be an integer, "True" a boolean

    @classmethod
    def from_memory(cls, key: str, location: str, examples: Sequence[Sequence[Cell]]) -> "TextRows":
        """Return rows of examples in memory, which are (label, premise) or (label, premise, hypothesis)."""
        columns = COLUMNS[: max(map(len, examples), default=len(COLUMNS))]
        return cls(key, columns, [RowReader(location, lambda: enumerate(examples, 1))])

    def __iter__(self) -> Iterator[tuple[str, int, Label | None, Sequence[str]]]:
        """Yield (location, number, label, texts) of each row. In errors, the name of the row is location + number.

        The label is None if there is no gold label. The texts of such a row are not checked.

        Raises:
            UserError: If a value has the wrong type.
        """
        (label_key, label_name), *text_columns = self.columns
        label_type: type | None = None
        for reader in self.readers:
            for number, (value, *texts) in reader.read():
                label = normalize_label(value, self.untyped)
                if label is not None:
                    if type(label) is not label_type:
                        column = f"{label_name!r} ({label_key})"
                        label_type = _check_label_type(f"{reader.location}{number}: ", column, label, label_type)
                    for text_column, text in zip(text_columns, texts, strict=True):
                        if not isinstance(text, str) or not text.isascii():
                            _check_text(f"{reader.location}{number}: ", text_column, text)
                yield reader.location, number, label, texts


@dataclass(frozen=True)
class TextSource:
    """Both splits of a corpus, and what is known of the classes before any row is read."""

    train: TextRows
    validation: TextRows
    data_classes: list[str] | None  # integer label i means class i; None if the source does not name them
    model_classes: list[str] | None = None  # names of the model's outputs, if `data.classes` sets them


@dataclass(frozen=True)
class RowSurvey:
    """Result of reading all rows of a split once."""

    label_locations: dict[Label, str]  # distinct written label -> name of its first row, in the order of these rows
    examples: int  # rows with a gold label
    dropped: int  # rows without a gold label


def list_required_columns(data: TextColumnSettings) -> RequiredColumns:
    """Return the columns to read: the label, the premise and, for pairs, the hypothesis."""
    columns = [("data.label", data.label), ("data.premise", data.premise)]
    return columns if data.hypothesis is None else [*columns, ("data.hypothesis", data.hypothesis)]


def survey_rows(rows: TextRows) -> RowSurvey:
    """Read and check all rows. Log a warning about each column whose texts are all empty.

    Raises:
        UserError: For the first row that is wrong, or if there are no rows with a gold label.
    """
    label_locations: dict[Label, str] = {}
    examples = dropped = 0
    empty_columns = rows.columns[1:]
    for location, number, label, texts in show_progress(rows, f"checking {rows.key}"):
        if label is None:
            dropped += 1
            continue
        examples += 1
        if label not in label_locations:
            label_locations[label] = f"{location}{number}"
            if len(label_locations) > MAX_LABELS:
                raise UserError(
                    f"data.label: more than {MAX_LABELS} classes in {rows.key}; set it to the column that holds the "
                    "classes"
                )
        if empty_columns:
            columns = zip(rows.columns[1:], texts, strict=True)
            empty_columns = [column for column, text in columns if column in empty_columns and not text.strip()]
    if not examples and not dropped:
        raise UserError(f"{rows.key}: no examples; add rows, or set it to another file")
    if not examples:
        raise UserError(f"{rows.key}: no example with a gold label ({dropped} rows without one); see data.label")
    for key, name in empty_columns:
        log.warning("%s: every text of %r (%s) is empty", rows.key, name, key)
    return RowSurvey(label_locations, examples, dropped)


def _check_label_type(location: str, column: str, label: Cell, expected: type | None) -> type:
    """Return the type of a label, which must be the type of the labels before it."""
    if isinstance(label, float):
        raise UserError(f"{location}{column} is {label}; {LABEL_REMEDY}")
    if type(label) not in PLURALS:
        raise UserError(f"{location}{column} is {type(label).__name__}; {LABEL_REMEDY}")
    if expected is not None:
        types = " and ".join(sorted({PLURALS[type(label)], PLURALS[expected]}))
        raise UserError(f"{location}{types} are mixed in {column}; use one type")
    return type(label)


def _check_text(location: str, column: tuple[str, str], text: Cell) -> None:
    key, name = column
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        remedy = "remove the row or fill it in" if text is None else f"set {key} to a column of text"
        raise UserError(f"{location}{name!r} ({key}) is {kind}, not a string; {remedy}")
    if re.search("[\ud800-\udfff]", text):
        raise UserError(f"{location}{name!r} ({key}) has a lone surrogate; no tokenizer reads it, remove it")
