"""Labels as files have them: integers, strings, booleans, and integers that pandas wrote as floats.

A gold label is the class that the annotators agreed on. Data sets mark a row without one by -1, "-" or an empty cell.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from common.data.abbreviation import abbreviate
from common.errors import UserError

Cell = Any  # a value of JSON or Arrow that is not checked yet
Label = int | str | bool

PLURALS = {int: "integers", str: "strings", bool: "booleans"}
NO_GOLD_LABEL = (None, -1, "-1", "-", "")
NO_GOLD_WORDS = ("-1.0", "nan", "NaN")  # in CSV and TSV, whose values are all text
# Words, in lower case, that say in some files that a label is missing, and name a class in others.
AMBIGUOUS_WORDS = ("na", "n/a", "#n/a", "<na>", "none", "null")
INTEGER = re.compile("(-?[0-9]{1,18})([.]0*)?")  # at most 18 digits, so that it fits 64 bits
NUMBER = re.compile("-?[0-9]*[.]?[0-9]+(e[+-]?[0-9]+)?", re.IGNORECASE)
BOOLEANS = {"false": False, "true": True}
LABEL_REMEDY = "set data.label to a column of integers or strings"


def normalize_label(label: Cell, untyped: bool) -> Cell:
    """Return None for a value that marks a missing gold label, an integer for a whole float, otherwise the value.

    Args:
        label: Value of the label column.
        untyped: Whether the value comes from CSV or TSV.
    """
    if isinstance(label, float):
        label = None if math.isnan(label) else int(label) if label.is_integer() else label
    return None if label in NO_GOLD_LABEL or (untyped and label in NO_GOLD_WORDS) else label


def check_ambiguous_words(labels: Mapping[Label, str]) -> None:
    """Raise UserError for the first label that may be a class or say that there is none, such as NA.

    Args:
        labels: Each distinct label -> name of its first row.
    """
    for label, location in labels.items():
        if str(label).strip().lower() in AMBIGUOUS_WORDS:
            raise UserError(
                f"{location}: label {abbreviate(label)} may be a class or mark a missing label; if it is a class, "
                "name all classes in data.classes=[...], otherwise write -1 or leave the label empty"
            )


def infer_label_types(word_locations: Mapping[Label, str]) -> dict[Label, Label]:
    """Return the typed label of each word in a label column of CSV or TSV.

    The labels are integers if all words are integers, else booleans if all words are booleans, else strings.

    Args:
        word_locations: Each distinct word -> name of its first row, for errors.

    Raises:
        UserError: If all words are numbers, but not all are whole.
    """
    texts = {str(word): location for word, location in word_locations.items()}
    if all(map(INTEGER.fullmatch, texts)):
        return {text: int(text.partition(".")[0]) for text in texts}
    if all(map(NUMBER.fullmatch, texts)):
        for text, location in texts.items():
            if "." in text and not INTEGER.fullmatch(text):
                raise UserError(
                    f"{location}: label {abbreviate(text)} is not a whole number; {LABEL_REMEDY}, "
                    "or name the classes in data.classes as the file writes them"
                )
    if all(text.lower() in BOOLEANS for text in texts):
        return {text: BOOLEANS[text.lower()] for text in texts}
    return {text: text for text in texts}
