"""Margins: the largest shift between groups of seeds that counts as equivalent."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import UserError

MARGIN_PATTERN = re.compile(r"(\d+\.?\d*(?:e[+-]?\d+)?)(sd)?", re.IGNORECASE)


@dataclass(frozen=True)
class Margin:
    """A margin, absolute or in standard deviations between the seeds of the reference."""

    number: float
    in_deviations: bool


@dataclass(frozen=True)
class Margins:
    """The margin of every metric."""

    default: Margin
    by_metric: Mapping[str, Margin]


def parse_margins(default: str, by_metric: Mapping[str, str]) -> Margins:
    """Parse margins such as "0.01" and "0.5sd". Raises UserError that names the key."""
    parsed = {name: _parse(f"margins.{name}", text) for name, text in by_metric.items()}
    return Margins(_parse("margin", default), parsed)


def _parse(key: str, text: object) -> Margin:
    match = MARGIN_PATTERN.fullmatch(str(text).strip())
    if match is None:
        raise UserError(f"{key}={text}: must be a number such as 0.01, or of standard deviations such as 0.5sd")
    return Margin(float(match[1]), match[2] is not None)
