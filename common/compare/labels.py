"""Unique labels of runs, made from the settings that differ between them."""

from collections.abc import Callable, Sequence

from common.compare.experiment import LENGTH_KEYS
from common.compare.runs import Run
from common.config.keys import Scope
from common.config.schema import collect_keys

MAX_KEYS = 3  # in a label; if more differ, the label has only those that are needed to distinguish the runs
MAX_LETTERS = 40  # of a value or a name in a label


def make_labels_unique(runs: Sequence[Run]) -> None:
    """Add to equal labels the values of the config keys that differ.

    If no value differs, add the name of the run directory, or its path.
    """
    for run, label in zip(runs, _build_unique_labels(runs), strict=True):
        run.label = label


def _build_unique_labels(runs: Sequence[Run]) -> list[str]:
    additions: list[list[str]] = [[] for _ in runs]

    def build_labels() -> list[str]:
        return [
            f"{run} ({', '.join(texts)})" if texts else run.label for run, texts in zip(runs, additions, strict=True)
        ]

    for describe in (_describe_differing_values, _get_directory_names, _get_paths):
        by_label: dict[str, list[int]] = {}
        for index, label in enumerate(build_labels()):
            by_label.setdefault(label, []).append(index)
        for indexes in by_label.values():
            texts = describe([runs[index] for index in indexes]) if len(indexes) > 1 else []
            for index, text in zip(indexes, texts, strict=False):
                additions[index].append(text)
    return build_labels()


def _describe_differing_values(runs: list[Run]) -> list[str]:
    """Return the differing values of each run as "train.seed=1"; nothing if no key differs."""
    keys = _find_differing_keys(runs)
    if not keys:
        return []
    return [", ".join(f"{key}={_shorten(format_value(run.config[key]))}" for key in keys) for run in runs]


def _find_differing_keys(runs: list[Run]) -> list[str]:
    """Return keys that all runs have with different values, except keys of a host: those of the curve come first."""
    common_keys = set.intersection(*(set(run.config) for run in runs))
    by_values: dict[tuple[str, ...], str] = {}  # one key stands for all that have the same values
    for key in sorted(common_keys, key=_build_rank(list(runs[0].config))):
        values = tuple(format_value(run.config[key]) for run in runs)
        if len(set(values)) > 1 and _get_scope(key) is not Scope.HOST:
            by_values.setdefault(values, key)
    if len(by_values) <= MAX_KEYS:
        return list(by_values.values())
    needed: list[str] = []
    labels: list[tuple[str, ...]] = [()] * len(runs)
    for values, key in by_values.items():
        extended = [(*label, value) for label, value in zip(labels, values, strict=True)]
        if len(set(extended)) > len(set(labels)):
            needed, labels = [*needed, key], extended
    return needed


def _build_rank(keys: list[str]) -> Callable[[str], tuple[bool, bool, int]]:
    """Return a sort key: keys of the curve first, chosen keys before derived ones, then the order of the config."""

    def rank(key: str) -> tuple[bool, bool, int]:
        is_chosen = key in LENGTH_KEYS or key.endswith((".kind", ".name"))
        return _get_scope(key) is Scope.RUN and not is_chosen, not is_chosen, keys.index(key)

    return rank


def _get_scope(key: str) -> Scope:
    keys = collect_keys()
    return keys[key].scope if key in keys else Scope.CURVE


def _get_directory_names(runs: list[Run]) -> list[str]:
    return [_shorten(run.path.resolve().name) for run in runs]


def _get_paths(runs: list[Run]) -> list[str]:
    return [str(run.path) for run in runs]


def _shorten(text: str) -> str:
    """Replace the middle of a long text by an ellipsis."""
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS // 2]}…{text[-MAX_LETTERS // 2 :]}"


def format_value(value: object) -> str:
    """Format a value of a config, or `versions` or `hardware` of summary.json: "torch 2.13.0, python 3.11"."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(format_value(entry) for entry in value)
    return "null" if value is None else str(value)
