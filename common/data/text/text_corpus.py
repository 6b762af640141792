"""Corpora of labelled sentence pairs or single sentences, streamed. Each label becomes the index of a model's output.

A label goes through up to three forms:
    - written, as the file has it. CSV and TSV have only words: "1", "True", "no";
    - typed: 1, True, "no". The words of CSV and TSV are typed together, as `infer_label_types` says;
    - the index of its class among the model's outputs.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from common.config.data import DataSettings
from common.data.abbreviation import abbreviate
from common.data.text.label_types import BOOLEANS, Label, check_ambiguous_words, infer_label_types
from common.data.text.text_rows import RowSurvey, TextRows, TextSource, survey_rows
from common.errors import UserError

log = logging.getLogger("lockstep")

POSITIONAL_NAME = re.compile("(LABEL_)?[0-9]+")  # the name of an output without a name
MAX_INFERRED_CLASSES = 10_000  # no classification has more, so a column with more values is not the label column


@dataclass(frozen=True)
class LabelledTexts:
    """The examples of one split. Every iteration reads the examples again."""

    rows: TextRows
    class_indices: Mapping[Label, int]  # written label -> index of its class among the model's outputs
    examples: int  # rows with a gold label
    dropped: int  # rows without a gold label

    def __len__(self) -> int:
        return self.examples

    def __iter__(self) -> Iterator[tuple[Sequence[str], int]]:
        """Yield the texts of each example, [premise] or [premise, hypothesis], and the index of its class.

        Raises:
            UserError: If the rows have changed since they were checked.
        """
        yielded = 0
        for _, _, label, texts in self.rows:
            if label is not None:
                if label not in self.class_indices:
                    break
                yielded += 1
                yield texts, self.class_indices[label]
        if yielded != self.examples:
            raise UserError(f"{self.rows.key}: has changed since it was checked; start the command again")


@dataclass(frozen=True)
class TextCorpus:
    """Both splits of a corpus."""

    train: LabelledTexts
    validation: LabelledTexts
    classes: list[str]  # in the order of the model's outputs


def read_corpus(data: DataSettings, checkpoint_classes: list[str] | None = None) -> TextCorpus:
    """Read and check all rows of a corpus once.

    The classes of the model's outputs, in order, are the first of these that is known:
        1. `checkpoint_classes`, unless the data has another number of classes and none of them is among these;
        2. `data.classes`;
        3. the classes that the source names, as a data set of the hub may do;
        4. the labels of the training split: for integers "0" to the largest, false and true for booleans, and the
           sorted labels for strings.

    If the data names its classes, each of them is found among the model's classes by its name. So the data may number
    its classes in another order than the model. If the data has no names, an integer label is the index of the output.
    Names of a checkpoint such as LABEL_0 or 0 have no meaning: only their position counts.

    Args:
        data: Settings of the data.
        checkpoint_classes: Names of the outputs of a pretrained checkpoint; None if it has no classification head.

    Raises:
        UserError: For the first row that is wrong. The error names the file and line, or the config key.
    """
    source: TextSource = import_module(data.source).read(data)
    train, validation = survey_rows(source.train), survey_rows(source.validation)
    if checkpoint_classes and _has_other_classes(source, train, checkpoint_classes):
        checkpoint_classes = None
    data_classes = source.data_classes or checkpoint_classes
    if not data_classes:
        check_ambiguous_words({**validation.label_locations, **train.label_locations})
        data_classes = _infer_class_names(_infer_labels(source.train, train))
    model_classes = checkpoint_classes or source.model_classes or data_classes
    model_indices = _find_model_indices(data_classes, model_classes)
    return TextCorpus(
        _label_split(source.train, train, data_classes, model_indices),
        _label_split(source.validation, validation, data_classes, model_indices),
        list(model_classes),
    )


def _has_other_classes(source: TextSource, train: RowSurvey, checkpoint_classes: list[str]) -> bool:
    """Check whether the data has another number of classes than a checkpoint, and none that the checkpoint has.

    If only some of the names are the checkpoint's, a label may be misspelled. Integers and booleans are classes of any
    checkpoint that has as many outputs.
    """
    labels = _infer_labels(source.train, train)
    names = source.data_classes or _infer_class_names(labels)
    if set(names) <= set(checkpoint_classes) or set(map(str, labels.values())) <= set(checkpoint_classes):
        return False
    has_strings = isinstance(next(iter(labels.values())), str)
    are_positions = all(map(POSITIONAL_NAME.fullmatch, checkpoint_classes)) if source.data_classes else not has_strings
    if are_positions:
        return len(names) > len(checkpoint_classes)
    return len(names) != len(checkpoint_classes) and not set(names) & set(checkpoint_classes)


def _infer_labels(rows: TextRows, survey: RowSurvey) -> dict[Label, Label]:
    """Return the typed label of every written label of a split."""
    if rows.untyped:
        return infer_label_types(survey.label_locations)
    return {label: label for label in survey.label_locations}


def _infer_class_names(labels: dict[Label, Label]) -> list[str]:
    """Return the names of the classes of data that has only labels.

    Args:
        labels: Typed label of every written label of the training split. All typed labels have the same type.
    """
    names = sorted(map(str, labels))
    first_label = next(iter(labels.values()))
    if isinstance(first_label, bool):
        # The names are the two words as the file has them, unless one is missing or spelled in two ways.
        return names if [name.lower() for name in names] == list(BOOLEANS) else ["False", "True"]
    has_integers = isinstance(first_label, int)
    count = max(cast(list[int], list(labels.values()))) + 1 if has_integers else len(names)
    if count > MAX_INFERRED_CLASSES:
        raise UserError(f"data.label: {count} classes in data.train; set it to the column that holds the classes")
    if has_integers:
        return [str(i) for i in range(count)]
    spellings = Counter(name.strip().casefold() for name in names)
    if similar := [name for name in names if spellings[name.strip().casefold()] > 1]:
        log.warning(
            "data.label: the classes %s differ only in spaces or case; write each in one way", abbreviate(similar)
        )
    return names


def _find_model_indices(data_classes: list[str], model_classes: list[str]) -> list[int]:
    """Return the index of the model's output for each of the data's classes."""
    if set(data_classes) <= set(model_classes):
        return [model_classes.index(name) for name in data_classes]
    if len(data_classes) <= len(model_classes) and all(map(POSITIONAL_NAME.fullmatch, model_classes)):
        return list(range(len(data_classes)))
    raise UserError(
        f"data.classes: the data's classes {abbreviate(data_classes)} are not among the checkpoint's "
        f"{abbreviate(model_classes)}; set it to the checkpoint's names, in the order of the data's integer labels"
    )


def _label_split(rows: TextRows, survey: RowSurvey, data_classes: list[str], model_indices: list[int]) -> LabelledTexts:
    """Return the examples of a split, with the index of the model's output for every written label.

    Args:
        rows: Rows of the split.
        survey: Result of reading them.
        data_classes: Names of the data's classes. An integer label is an index in them, and a string is one of them. A
            boolean stands for the class "false" or "true" if both are names, else for class 0 or 1.
        model_indices: Index of the model's output for each of the data's classes.
    """
    lower_names = [name.lower() for name in data_classes]
    # The classes of False and True.
    booleans = [lower_names.index(word) for word in BOOLEANS] if set(BOOLEANS) <= set(lower_names) else [0, 1]
    name_indices: dict[Label, int] = {name: i for i, name in enumerate(data_classes)}
    name_indices.update(zip((False, True), booleans, strict=True))
    class_indices: dict[Label, int] = {}
    for written, label in _resolve_labels(rows, survey, data_classes).items():
        index = label if type(label) is int else name_indices.get(label)
        if index is None or not 0 <= index < len(data_classes):
            known = f"the {len(data_classes)} classes {abbreviate(data_classes)}" if data_classes else "the classes"
            hint = "see data.classes" if isinstance(label, str) else "see data.classes (integers count from 0)"
            raise UserError(
                f"{survey.label_locations[written]}: label {abbreviate(label)} is not one of {known}; {hint}"
            )
        class_indices[written] = model_indices[index]
    return LabelledTexts(rows, class_indices, survey.examples, survey.dropped)


def _resolve_labels(rows: TextRows, survey: RowSurvey, data_classes: list[str]) -> dict[Label, Label]:
    """Return the integer, the boolean or the class name for every written label.

    In CSV and TSV, "1" may be the name of a class or the index of one. The written labels are taken as names if all of
    them are class names. Otherwise they are typed. The typed labels are taken as names if all of them, as text, are
    class names (1.0 is the class "1"), and else as they are.
    """
    as_written: dict[Label, Label] = {label: label for label in survey.label_locations}
    if not rows.untyped or as_written.keys() <= set(data_classes):
        return as_written
    labels = _infer_labels(rows, survey)
    by_name: dict[Label, Label] = {word: str(label) for word, label in labels.items()}
    return by_name if set(by_name.values()) <= set(data_classes) else labels
