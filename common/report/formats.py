"""Formats of numbers for people, and tables of formatted cells."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

METRIC_CAPTIONS = {
    "loss": "Mean over all validation examples.",
    "accuracy": "Share of all validation examples.",
    "mean_absolute_error": "Mean over all validation examples.",
    "perplexity": "The exponential of the validation loss.",
}


@dataclass(frozen=True)
class TableSection:
    """A table under a title, with sentences below it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    text: tuple[str, ...] = ("run",)  # columns of text; the others hold numbers
    sentences: list[str] = field(default_factory=list)
    minor: tuple[str, ...] = ()  # columns that a narrow terminal leaves out first, before the last columns


def describe_metric(name: str) -> str:
    """Return the caption of the plot of a validation metric."""
    return METRIC_CAPTIONS.get(name, "From the predictions for all validation examples.")


def format_number(value: float | None, form: str) -> str:
    """Format a number. None becomes "-"; NaN and infinities become "not finite"."""
    if value is None:
        return "-"
    return format(value, form) if math.isfinite(value) else "not finite"


def format_memory(peaks: Sequence[float | None]) -> str:
    """Format the peak bytes of each replica in MiB: "412 MiB" or "412, 398 MiB"."""
    mib = ["-" if peak is None else f"{peak / 2**20:,.0f}" for peak in peaks]
    return f"{', '.join(mib)} MiB" if mib else "-"


def format_bytes(count: float | None) -> str:
    """Format bytes: "512 B", "12.0 KiB" or "3.4 MiB"."""
    if count is None or not math.isfinite(count):
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
