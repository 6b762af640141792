"""Values in the rows of other programs' files: numbers, absent values, times of a clock, and how they are rounded."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

from common.errors import UserError

ABSENT = ("", "na", "n/a", "none", "null")  # entries of a row that mean "no value", in lower case
MOST_WORDS = 5  # largest number of distinct words in a column that distinguishes kinds of rows
MIN_NUMBERS = 4  # fewest numbers of one magnitude that show the printed digits; all of fewer may end with 0
CLOCK = re.compile(r"(?:(\d+):)?([0-5]?\d):([0-5]?\d(?:\.\d+)?)")  # fastai writes 01:02 or 1:00:02


def is_absent(value: object) -> bool:
    """Check whether an entry of a row means "no value"."""
    return value is None or (isinstance(value, str) and value.strip().lower() in ABSENT)


def read_number(position: str, columns: Mapping[str, str], metric: str, values: Mapping[str, object]) -> float:
    """Return a metric of a row; NaN if the file has no column for it or the row has no value there.

    Raises:
        UserError: The value is not a number. The message says how to leave the column out if the metric is optional.
    """
    value = values.get(columns[metric]) if metric in columns else None
    if is_absent(value):
        return math.nan
    if metric == "seconds" and (clock := CLOCK.fullmatch(str(value).strip())):
        hours, minutes, seconds = clock.groups(default="0")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(str(value))
    except ValueError:
        remedy = "" if metric in ("step", "loss", "epoch") else f"; remove it with columns.{metric}=null"
        raise UserError(
            f"{position}: '{columns[metric]}' must be a number, found {str(value)[:60]!r}{remedy}"
        ) from None


def find_words(rows: Sequence[Mapping[str, object]]) -> dict[str, set[str]]:
    """Return the words of each column that has 2 to MOST_WORDS distinct words, all without digits."""
    words_by_column = {}
    for column in dict.fromkeys(name for row in rows for name in row):
        words = {str(row[column]).strip() for row in rows if not is_absent(row.get(column))}
        has_digits = any(re.search(r"\d|^(true|false|nan|[+-]?inf)$", word, re.IGNORECASE) for word in words)
        if 1 < len(words) <= MOST_WORDS and not has_digits:
            words_by_column[column] = words
    return words_by_column


def measure_rounding(values: Iterable[object], relative: bool = False) -> float:
    """Return the largest error that comes from writing numbers with few digits; 0 if all of them are integers.

    Zeros at the end of a number are often left out, so the largest number of decimals counts. Numbers that are rounded
    to a number of significant digits have fewer decimals if they are large, so each magnitude is examined separately.

    Args:
        values: Entries of a column.
        relative: Whether to divide the error by the number.
    """
    numbers = [number for value in values if (number := _parse_decimal(value)) is not None]
    if all(number == number.to_integral_value() for number in numbers):
        return 0.0
    decimals_by_magnitude: dict[int, list[int]] = {}
    for number in numbers:
        decimals_by_magnitude.setdefault(number.adjusted(), []).append(-int(number.as_tuple().exponent))
    most_decimals = max(map(max, decimals_by_magnitude.values()))
    errors = {
        magnitude: 0.5 * 10.0 ** -(max(decimals) if len(decimals) >= MIN_NUMBERS else most_decimals)
        for magnitude, decimals in decimals_by_magnitude.items()
    }
    if relative:
        return max(errors[number.adjusted()] / abs(float(number)) for number in numbers if number)
    return max(errors.values())


def _parse_decimal(value: object) -> Decimal | None:
    """Return a finite number with the digits that it is written with."""
    if is_absent(value) or isinstance(value, bool):
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return number if math.isfinite(float(number)) else None
