"""Margins: the largest shift between groups of seeds that counts as equivalent."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import UserError

MARGIN_PATTERN = re.compile(r"(\d+\.?\d*(?:e[+-]?\d+)?)(sd)?", re.IGNORECASE)


@dataclass(frozen=True)
class Margin:
    """A margin: an absolute number, or a multiple of the standard deviation of the reference's seeds."""

    number: float
    in_deviations: bool


@dataclass(frozen=True)
class Margins:
    """The margins of all metrics. by_metric: the margins of single metrics, which replace `default`."""

    default: Margin
    by_metric: Mapping[str, Margin]

    def get(self, metric: str) -> Margin:
        """Return the margin of a metric."""
        return self.by_metric.get(metric, self.default)


def parse_margins(default: str, by_metric: Mapping[str, str]) -> Margins:
    """Parse margins such as "0.01" and "0.5sd". Raise UserError, which names the key, for other text."""
    parsed = {name: _parse(f"margins.{name}", text) for name, text in by_metric.items()}
    return Margins(_parse("margin", default), parsed)


def _parse(key: str, text: str) -> Margin:
    match = MARGIN_PATTERN.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"{key}={text}: must be a number such as 0.01, or a number of standard deviations such as 0.5sd"
        )
    return Margin(float(match[1]), match[2] is not None)
