"""Labels that tell runs apart by what differs between them."""

from collections.abc import Callable, Sequence
from typing import Any

from common.compare.experiment import LENGTH_KEYS
from common.compare.runs import Run
from common.config.keys import Scope
from common.config.schema import collect_keys

MOST_KEYS = 3  # in a label; of more, only those that are needed to tell the runs apart
LONGEST = 40  # characters of a value or a name in a label


def distinguish(runs: Sequence[Run]) -> None:
    """Make labels unique: add to equal ones the values of the config keys that differ.

    Where none does, add the name of the run directory, or its path.
    """
    for run, label in zip(runs, _unique(runs), strict=True):
        run.label = label


def _unique(runs: Sequence[Run]) -> list[str]:
    added: list[list[str]] = [[] for _ in runs]

    def labels() -> list[str]:
        return [f"{run} ({', '.join(texts)})" if texts else run.label for run, texts in zip(runs, added, strict=True)]

    for describe in (_differing_values, _names, _paths):
        by_label: dict[str, list[int]] = {}
        for index, label in enumerate(labels()):
            by_label.setdefault(label, []).append(index)
        for same in by_label.values():
            texts = describe([runs[index] for index in same]) if len(same) > 1 else []
            for index, text in zip(same, texts, strict=False):
                added[index].append(text)
    return labels()


def _differing_values(runs: list[Run]) -> list[str]:
    """The values of the keys that differ, as "train.seed=1"; nothing where no key differs."""
    keys = _differing_keys(runs)
    return [", ".join(f"{key}={_short(format_value(run.config[key]))}" for key in keys) for run in runs] if keys else []


def _differing_keys(runs: list[Run]) -> list[str]:
    """Keys that all runs have, with different values: those that may change the curve first, none of one host's own."""
    by_values: dict[tuple[str, ...], str] = {}  # one key for several with the same values
    for key in sorted(set.intersection(*(set(run.config) for run in runs)), key=_rank(list(runs[0].config))):
        values = tuple(format_value(run.config[key]) for run in runs)
        if len(set(values)) > 1 and _scope(key) is not Scope.HOST:
            by_values.setdefault(values, key)
    if len(by_values) <= MOST_KEYS:
        return list(by_values.values())
    needed: list[str] = []
    told: list[tuple[str, ...]] = [()] * len(runs)
    for values, key in by_values.items():
        further = [(*before, value) for before, value in zip(told, values, strict=True)]
        if len(set(further)) > len(set(told)):
            needed, told = [*needed, key], further
    return needed


def _rank(keys: list[str]) -> Callable[[str], Any]:
    """Keys of the curve first; what a user chooses before what follows from it; then as in the config."""

    def rank(key: str) -> Any:
        chosen = key in LENGTH_KEYS or key.endswith((".kind", ".name"))
        return _scope(key) is Scope.RUN and not chosen, not chosen, keys.index(key)

    return rank


def _scope(key: str) -> Scope:
    table = collect_keys()
    return table[key].scope if key in table else Scope.CURVE


def _names(runs: list[Run]) -> list[str]:
    return [_short(run.path.resolve().name) for run in runs]


def _paths(runs: list[Run]) -> list[str]:
    return [str(run.path) for run in runs]


def format_value(value: Any) -> str:
    """A value of a config, or of `versions` or `hardware` in summary.json: "torch 2.13.0, python 3.11"."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(format_value(entry) for entry in value)
    return "null" if value is None else str(value)


def _short(text: str) -> str:
    """`text`, without its middle where it is long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"
