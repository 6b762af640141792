"""Labels as data has them: integers, strings, booleans, and integers that pandas wrote as floats."""

import math
import re
from collections.abc import Mapping
from typing import Any

from common.data.required_columns import show
from common.errors import UserError

Label = int | str | bool

PLURALS = {int: "integers", str: "strings", bool: "booleans"}
NO_GOLD_LABEL = (None, -1, "-1", "-", "")
NO_GOLD_WORDS = ("-1.0", "nan", "NaN")  # in CSV and TSV, where all is text
INTEGER = re.compile("(-?[0-9]{1,18})([.]0*)?")
NUMBER = re.compile("-?[0-9]*[.]?[0-9]+(e[+-]?[0-9]+)?", re.IGNORECASE)
BOOLEANS = {"false": False, "true": True}
OTHER_LABELS = "set data.label to a column of integers or strings"


def normalize_label(label: Any, untyped: bool) -> Any:
    """None where there is no gold label; a float that is whole as an integer; else the label itself.

    untyped: it comes from CSV or TSV.
    """
    if isinstance(label, float):
        label = None if math.isnan(label) else int(label) if label.is_integer() else label
    return None if label in NO_GOLD_LABEL or (untyped and label in NO_GOLD_WORDS) else label


def infer_label_types(words: Mapping[Any, str]) -> dict[Label, Label]:
    """The labels of a column of CSV or TSV: integers where all are, else booleans where all are, else strings.

    words: each label with the place of its first row, for errors. Raises UserError for numbers that are not whole.
    """
    if all(map(INTEGER.fullmatch, words)):
        return {word: int(word.partition(".")[0]) for word in words}
    if all(map(NUMBER.fullmatch, words)):
        for word, place in words.items():
            if "." in word and not INTEGER.fullmatch(word):
                raise UserError(
                    f"{place}: label {show.repr(word)} is not a whole number; {OTHER_LABELS}, "
                    "or name the classes in data.classes as the file writes them"
                )
    if all(word.lower() in BOOLEANS for word in words):
        return {word: BOOLEANS[word.lower()] for word in words}
    return {word: word for word in words}
