"""Settings, versions and hardware that differ between runs, as text for a reader."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from common.compare.experiment import ABSENT, find_config_differences
from common.compare.labels import format_value
from common.compare.verdict import Comparison
from common.config.keys import Scope
from common.config.schema import collect_keys
from common.report.formats import format_bytes

MAX_LETTERS = 200  # length of a value as text


class ConfigRow(TypedDict):
    """Values of a config key that differs between runs, as in report.json."""

    values: dict[str, object]  # the value of the key in each run, by the run's label
    may_change_curve: bool  # whether the key makes two of the runs different experiments


@dataclass(frozen=True)
class SettingDifference:
    """A setting whose values differ, with the labels of the runs that have each value."""

    key: str
    name: str
    values: dict[str, list[str]]  # labels by value (as text), in the order of the runs

    @property
    def words(self) -> str:
        """The difference as text, such as "global batch size 32 against 64"."""
        return f"{self.name} {' against '.join(self.values)}"


@dataclass(frozen=True)
class SettingDifferences:
    """All settings that differ, and the settings that are the same in all runs."""

    curve: list[SettingDifference] = field(default_factory=list)  # may change the curve
    other: list[SettingDifference] = field(default_factory=list)  # cannot change the curve
    # The page folds settings that concern one host, or whose key some runs lack.
    folded: list[SettingDifference] = field(default_factory=list)
    versions: list[SettingDifference] = field(default_factory=list)
    hardware: list[SettingDifference] = field(default_factory=list)
    same: dict[str, str] = field(default_factory=dict)  # value (as text) by key


def build_config_table(comparison: Comparison) -> dict[str, ConfigRow]:
    """Return every config key whose values differ; keys that may change the curve come first."""
    table: dict[str, ConfigRow] = {}
    for pair in comparison.pairs:
        if pair.a.external_kind or pair.b.external_kind:
            continue
        for key in find_config_differences(pair.a, pair.b):
            if key not in table:
                values = {run.label: run.config.get(key, ABSENT) for run in comparison.runs}
                table[key] = {"values": values, "may_change_curve": False}
            table[key]["may_change_curve"] |= key in pair.config_differences
    return dict(sorted(table.items(), key=lambda item: (not item[1]["may_change_curve"], item[0])))


def find_setting_differences(comparison: Comparison) -> SettingDifferences:
    """Return the settings that differ between the runs whose configs are known."""
    runs = [run for run in comparison.runs if run.config]
    differences = SettingDifferences()
    for key, row in build_config_table(comparison).items():
        values = {run.label: row["values"][run.label] for run in runs}
        difference = _build_difference(key, _describe_key(key), values)
        if len(difference.values) < 2:
            continue
        is_host_key = key in collect_keys() and collect_keys()[key].scope is Scope.HOST  # only concerns one host
        if row["may_change_curve"]:
            differences.curve.append(difference)
        elif is_host_key or ABSENT in difference.values:
            differences.folded.append(difference)
        else:
            differences.other.append(difference)
    differences.versions.extend(_compare_entries({run.label: run.summary.get("versions") for run in comparison.runs}))
    differences.hardware.extend(_compare_entries({run.label: run.summary.get("hardware") for run in comparison.runs}))
    if runs:
        differences.same.update(
            {
                key: _describe_value(key, value)
                for key, value in runs[0].config.items()
                if all(run.config.get(key, ABSENT) == value for run in runs)
            }
        )
    return differences


def _compare_entries(by_label: Mapping[str, object]) -> list[SettingDifference]:
    """Return the entries of `versions` or `hardware` of summary.json that differ between runs.

    Only runs that have an entry are compared, because one framework lacks the packages of the other.

    Args:
        by_label: `versions` or `hardware` of each run, by the label of the run.
    """
    mappings = {label: mapping for label, mapping in by_label.items() if isinstance(mapping, dict)}
    keys = dict.fromkeys(key for mapping in mappings.values() for key in mapping)
    differences = [
        _build_difference(
            key, key.replace("_", " "), {label: mapping[key] for label, mapping in mappings.items() if key in mapping}
        )
        for key in keys
    ]
    return [difference for difference in differences if len(difference.values) > 1]


def _build_difference(key: str, name: str, values: Mapping[str, object]) -> SettingDifference:
    """Group the labels of runs by their values as text. `values`: the value of each run, by label."""
    labels_by_value: dict[str, list[str]] = {}
    for label, value in values.items():
        labels_by_value.setdefault(_describe_value(key, value), []).append(label)
    return SettingDifference(key, name, labels_by_value)


def _describe_key(key: str) -> str:
    """Return a title of a key: "global batch size" for train.global_batch_size, "optimizer" for optimizer.kind."""
    group, _, leaf = key.rpartition(".")
    return (group if leaf in ("kind", "name") and group else leaf).replace("_", " ")


def _describe_value(key: str, value: object) -> str:
    text = format_bytes(value) if key.endswith("_bytes") and isinstance(value, int) else format_value(value)
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}…"
