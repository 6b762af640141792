"""Only what differs between runs: settings, versions and hardware, each in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.compare.experiment import ABSENT, config_differences
from common.compare.labels import format_value
from common.compare.runs import Run
from common.compare.verdict import Comparison
from common.config.keys import Scope
from common.config.schema import collect_keys
from common.report.formats import format_bytes

LONGEST = 200  # characters of a value in words


@dataclass(frozen=True)
class Difference:
    """One thing whose values differ: the labels of the runs that have each value, in the order of the runs."""

    key: str
    name: str
    values: dict[str, list[str]]

    @property
    def words(self) -> str:
        """For example: global batch size 32 against 64."""
        return f"{self.name} {' against '.join(self.values)}"


@dataclass(frozen=True)
class Differences:
    """What differs, divided by what a reader looks for first, and what is the same everywhere."""

    curve: list[Difference] = field(default_factory=list)  # may change the curve
    other: list[Difference] = field(default_factory=list)  # does not
    folded: list[Difference] = field(default_factory=list)  # only some runs can have it, or it is a host's own
    versions: list[Difference] = field(default_factory=list)
    hardware: list[Difference] = field(default_factory=list)
    same: dict[str, str] = field(default_factory=dict)


def config_table(comparison: Comparison) -> dict[str, Any]:
    """Every key whose values differ: its value in each run, and whether it makes two of them different experiments."""
    table: dict[str, Any] = {}
    for pair in comparison.pairs:
        if pair.a.external or pair.b.external:
            continue
        for key in config_differences(pair.a, pair.b):
            if key not in table:
                values = {run.label: run.config.get(key, ABSENT) for run in comparison.runs}
                table[key] = {"values": values, "may_change_curve": False}
            table[key]["may_change_curve"] |= key in pair.config_differences
    return dict(sorted(table.items(), key=lambda item: (not item[1]["may_change_curve"], item[0])))


def what_differs(comparison: Comparison) -> Differences:
    """The differences between all runs of a comparison whose configs are known."""
    runs = [run for run in comparison.runs if run.config]
    found = Differences()
    for key, row in config_table(comparison).items():
        values = {run.label: row["values"][run.label] for run in runs}
        each = _difference(key, _name(key), values)
        if len(each.values) < 2:
            continue
        aside = ABSENT in each.values or (key in collect_keys() and collect_keys()[key].scope is Scope.HOST)
        (found.curve if row["may_change_curve"] else found.folded if aside else found.other).append(each)
    for name, into in (("versions", found.versions), ("hardware", found.hardware)):
        into += _of_summary(name, comparison.runs)
    if runs:
        first = runs[0].config
        found.same.update(
            {k: _value(k, v) for k, v in first.items() if all(r.config.get(k, ABSENT) == v for r in runs)}
        )
    return found


def _of_summary(name: str, runs: list[Run]) -> list[Difference]:
    """What differs in a part of summary.json, among the runs that have it: one framework lacks the other's packages."""
    parts = {run.label: part for run in runs if isinstance(part := run.summary.get(name), dict)}
    keys = dict.fromkeys(key for part in parts.values() for key in part)
    having = {key: {label: part[key] for label, part in parts.items() if key in part} for key in keys}
    found = [_difference(key, key.replace("_", " "), values) for key, values in having.items()]
    return [each for each in found if len(each.values) > 1]


def _difference(key: str, name: str, values: Mapping[str, Any]) -> Difference:
    by_value: dict[str, list[str]] = {}
    for label, value in values.items():
        by_value.setdefault(_value(key, value), []).append(label)
    return Difference(key, name, by_value)


def _name(key: str) -> str:
    group, _, leaf = key.rpartition(".")
    return (group if leaf in ("kind", "name") and group else leaf).replace("_", " ")


def _value(key: str, value: Any) -> str:
    text = format_bytes(value) if key.endswith("_bytes") and isinstance(value, int) else format_value(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
