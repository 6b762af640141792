"""Corpora of labelled sentence pairs (or single sentences) as lists, with labels that index the model's classes."""

import re
from dataclasses import dataclass
from importlib import import_module

from common.config.data import Data
from common.data.columns import show
from common.data.text.rows import Rows, Source
from common.errors import UserError

MAX_INFERRED_CLASSES = 10_000  # more than any classification has: the label column must be another one


@dataclass(frozen=True)
class Split:
    """Examples as parallel lists: `labels` index the corpus's classes; `dropped` rows had no gold label."""

    premises: list[str]
    hypotheses: list[str] | None
    labels: list[int]
    dropped: int


@dataclass(frozen=True)
class Corpus:
    """Both splits; `classes` are in the order of the model's outputs."""

    train: Split
    validation: Split
    classes: list[str]


def read_corpus(data: Data, classes: list[str] | None = None) -> Corpus:
    """Read both splits of a corpus. Raises UserError, which names the file and line or the key.

    The order of the model's classes is that of `classes`, which a checkpoint with a classification head has; else of
    `data.classes`; else of the classes that the source names; else that of the training split's labels (integers: "0"
    to the largest; strings: sorted). Where the data names its classes they are found in that order by name, so the two
    orders may differ; other integer labels are indexes. Names such as LABEL_0 or 0 mean nothing: the position decides.
    """
    source: Source = import_module(data.source).read(data)
    names = source.names or classes or _infer(source.train)
    ordered = classes or source.classes or names
    outputs = _outputs(names, ordered)
    return Corpus(_split(source.train, names, outputs), _split(source.validation, names, outputs), list(ordered))


def _infer(rows: Rows) -> list[str]:
    labels = _as_integers(rows.labels) if rows.untyped else rows.labels
    integers = [label for label in labels if isinstance(label, int)]
    count = max(integers) + 1 if integers else len(set(labels))
    if count > MAX_INFERRED_CLASSES:
        raise UserError(f"data.label: {count} classes in data.train; set it to the column that holds the classes")
    return [str(i) for i in range(count)] if integers else sorted({str(label) for label in labels})


def _as_integers(labels: list[int | str]) -> list[int | str]:
    if all(re.fullmatch("-?[0-9]{1,18}", str(label)) for label in labels):
        return [int(label) for label in labels]
    return labels


def _outputs(names: list[str], ordered: list[str]) -> list[int]:
    """The index in `ordered` of each of the data's class names."""
    if set(names) <= set(ordered):
        return [ordered.index(name) for name in names]
    if len(names) <= len(ordered) and all(re.fullmatch("(LABEL_)?[0-9]+", name) for name in ordered):
        return list(range(len(names)))
    raise UserError(
        f"data.classes: the data's classes {show.repr(names)} are not among the checkpoint's {show.repr(ordered)}; "
        "set it to the checkpoint's names, in the order of the data's integer labels"
    )


def _split(rows: Rows, names: list[str], outputs: list[int]) -> Split:
    """An integer label indexes `names`, a string is one of them; `outputs` has the class of each."""
    position = {name: i for i, name in enumerate(names)}
    labels = rows.labels
    if rows.untyped and not position.keys() >= set(labels):
        labels = _as_integers(labels)
    indexes = []
    for number, label in zip(rows.numbers, labels, strict=True):
        index = position.get(label) if isinstance(label, str) else label
        if index is None or not 0 <= index < len(names):
            classes = f"the {len(names)} classes {show.repr(names)}"
            raise UserError(f"{rows.at}{number}: label {show.repr(label)} is not one of {classes}; see data.classes")
        indexes.append(outputs[index])
    premises, *hypotheses = rows.texts
    return Split(premises, hypotheses[0] if hypotheses else None, indexes, rows.dropped)
