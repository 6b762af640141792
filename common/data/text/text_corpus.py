"""Corpora of labelled sentence pairs (or single sentences), streamed, with labels that index the model's classes."""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from common.config.data import DataSettings
from common.data.required_columns import show
from common.data.text.label_types import BOOLEANS, Label, infer_label_types
from common.data.text.text_rows import RowSurvey, TextRows, TextSource, survey_rows
from common.errors import UserError

log = logging.getLogger("lockstep")

MAX_INFERRED_CLASSES = 10_000  # more than any classification has: the label column must be another one


@dataclass(frozen=True)
class LabelledTexts:
    """The examples of one split, which are read anew for each iteration; `dropped` rows had no gold label."""

    rows: TextRows
    classes: Mapping[Label, int]  # of each label, its index in the corpus's classes
    examples: int
    dropped: int

    def __len__(self) -> int:
        return self.examples

    def __iter__(self) -> Iterator[tuple[Sequence[str], int]]:
        """The texts of each example, [premise] or [premise, hypothesis], and its class.

        Raises UserError where they are no longer the rows that were checked.
        """
        count = 0
        for _, _, label, texts in self.rows:
            if label is not None:
                if label not in self.classes:
                    break
                count += 1
                yield texts, self.classes[label]
        if count != self.examples:
            raise UserError(f"{self.rows.key}: has changed since it was checked; start the command again")


@dataclass(frozen=True)
class TextCorpus:
    """Both splits; `classes` are in the order of the model's outputs."""

    train: LabelledTexts
    validation: LabelledTexts
    classes: list[str]


def read_corpus(data: DataSettings, classes: list[str] | None = None) -> TextCorpus:
    """Read and check all rows of a corpus once. Raises UserError, which names the file and line or the key.

    The order of the model's classes is that of `classes`, which a checkpoint with a classification head has; else of
    `data.classes`; else of the classes that the source names; else that of the training split's labels (integers: "0"
    to the largest; booleans: false and true; strings: sorted). Where the data names its classes they are found in that
    order by name, so the two orders may differ; other integer labels are indexes. Names such as LABEL_0 or 0 mean
    nothing: the position decides.
    """
    source: TextSource = import_module(data.source).read(data)
    train, validation = survey_rows(source.train), survey_rows(source.validation)
    names = source.names or classes or _infer(_labels(source.train, train))
    ordered = classes or source.classes or names
    outputs = _outputs(names, ordered)
    return TextCorpus(
        _split(source.train, train, names, outputs),
        _split(source.validation, validation, names, outputs),
        list(ordered),
    )


def _labels(rows: TextRows, found: RowSurvey) -> dict[Label, Label]:
    """What each label of a split means."""
    return infer_label_types(found.labels) if rows.untyped else {label: label for label in found.labels}


def _infer(labels: dict[Label, Label]) -> list[str]:
    names = sorted(map(str, labels))
    meant: list[Any] = list(labels.values())
    if isinstance(meant[0], bool):  # the two words as they are written, unless one is missing or written in two ways
        return names if [name.lower() for name in names] == list(BOOLEANS) else ["False", "True"]
    count = max(meant) + 1 if isinstance(meant[0], int) else len(names)
    if count > MAX_INFERRED_CLASSES:
        raise UserError(f"data.label: {count} classes in data.train; set it to the column that holds the classes")
    if isinstance(meant[0], int):
        return [str(i) for i in range(count)]
    alike = Counter(name.strip().casefold() for name in names)
    if similar := [name for name in names if alike[name.strip().casefold()] > 1]:
        shown = show.repr(similar)
        log.warning("data.label: the classes %s differ only in spaces or case; write each in one way", shown)
    return names


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


def _split(rows: TextRows, found: RowSurvey, names: list[str], outputs: list[int]) -> LabelledTexts:
    """An integer indexes `names`, a string is one of them, a boolean either; `outputs` has the class of each."""
    words = [name.lower() for name in names]
    booleans = [words.index(word) for word in BOOLEANS] if set(BOOLEANS) <= set(words) else [0, 1]
    position: dict[Label, int] = {name: i for i, name in enumerate(names)}
    position.update(zip((False, True), booleans, strict=True))
    classes: dict[Label, int] = {}
    for written, label in _named(rows, found, names).items():
        index = label if type(label) is int else position.get(label)
        if index is None or not 0 <= index < len(names):
            known = f"the {len(names)} classes {show.repr(names)}" if names else "the classes"
            hint = "see data.classes" if isinstance(label, str) else "see data.classes (integers count from 0)"
            raise UserError(f"{found.labels[written]}: label {show.repr(label)} is not one of {known}; {hint}")
        classes[written] = outputs[index]
    return LabelledTexts(rows, classes, found.examples, found.dropped)


def _named(rows: TextRows, found: RowSurvey, names: list[str]) -> dict[Label, Label]:
    """The labels of a column of text: as they are written where those are names; else typed, by name if they can be."""
    as_written: dict[Label, Label] = {label: label for label in found.labels}
    if not rows.untyped or as_written.keys() <= set(names):
        return as_written
    labels = _labels(rows, found)
    by_name: dict[Label, Label] = {word: str(label) for word, label in labels.items()}
    return by_name if set(by_name.values()) <= set(names) else labels
