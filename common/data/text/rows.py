"""What a source of text is read into: rows whose labels are as they were found."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.config.data import Columns
from common.data.columns import NamedColumns
from common.data.text.labels import OTHER_LABELS, PLURALS, Label, read_label
from common.errors import UserError

log = logging.getLogger("lockstep")

Records = Iterable[tuple[int, Sequence[Any]]]  # (line or row, from 1; the values of the columns)


@dataclass
class Rows:
    """The examples of one split. Errors call example i `at` + `numbers[i]`, such as "train.csv:12"."""

    at: str
    texts: list[list[str]]  # [premises] or [premises, hypotheses]
    labels: list[Label] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    dropped: int = 0  # rows without a gold label
    untyped: bool = False  # CSV and TSV, where "1" may be an integer and "True" a boolean


@dataclass(frozen=True)
class Source:
    """Both splits of a corpus.

    names: the classes as the data names them, by their integer labels; None where the labels are all that is known.
    classes: the classes in the order of the model's outputs, where the config gives one.
    """

    train: Rows
    validation: Rows
    names: list[str] | None
    classes: list[str] | None = None


def named_columns(data: Columns) -> NamedColumns:
    """The columns to read: the label, the premise and, for pairs, the hypothesis."""
    columns = [("data.label", data.label), ("data.premise", data.premise)]
    return columns if data.hypothesis is None else [*columns, ("data.hypothesis", data.hypothesis)]


def collect(key: str, at: str, records: Records, columns: NamedColumns, untyped: bool = False) -> Rows:
    """The records with a gold label as the rows of a split. Raises UserError for values of the wrong type.

    key: the config key of the split. at: the start of a row's place in errors. untyped: see Rows.
    """
    (label_key, label_name), *text_columns = columns
    rows = Rows(at, [[] for _ in text_columns], untyped=untyped)
    for number, (value, *texts) in records:
        label = read_label(value, untyped)
        if label is None:
            rows.dropped += 1
            continue
        if isinstance(label, float):
            raise UserError(f"{at}{number}: {label_name!r} ({label_key}) is {label}; {OTHER_LABELS}")
        if type(label) not in PLURALS:
            kind = type(label).__name__
            raise UserError(f"{at}{number}: {label_name!r} ({label_key}) is {kind}; {OTHER_LABELS}")
        if rows.labels and type(label) is not type(rows.labels[0]):
            mixed = " and ".join(sorted({PLURALS[type(label)], PLURALS[type(rows.labels[0])]}))
            raise UserError(f"{at}{number}: {mixed} are mixed in {label_name!r} ({label_key}); use one type")
        for (text_key, name), text, column in zip(text_columns, texts, rows.texts, strict=True):
            if not isinstance(text, str):
                kind = "null" if text is None else type(text).__name__
                remedy = "remove the row or fill it in" if text is None else f"set {text_key} to a column of text"
                raise UserError(f"{at}{number}: {name!r} ({text_key}) is {kind}, not a string; {remedy}")
            if not text.isascii() and re.search("[\ud800-\udfff]", text):
                raise UserError(
                    f"{at}{number}: {name!r} ({text_key}) has a lone surrogate; no tokenizer reads it, remove it"
                )
            column.append(text)
        rows.labels.append(label)
        rows.numbers.append(number)
    if not rows.labels and not rows.dropped:
        raise UserError(f"{key}: no examples; add rows, or set it to another file")
    if not rows.labels:
        raise UserError(f"{key}: no example with a gold label ({rows.dropped} rows without one); see data.label")
    for (text_key, name), column in zip(text_columns, rows.texts, strict=True):
        if not any(map(str.strip, column)):
            log.warning("%s: every text of %r (%s) is empty", key, name, text_key)
    return rows
