"""Unique labels of runs, made from the settings that differ between them, such as "torch ddp x2 (train.seed=1)"."""

from collections.abc import Callable, Mapping, Sequence

from common.compare.experiment import LENGTH_KEYS
from common.compare.runs import Run
from common.config.keys import Scope
from common.config.schema import collect_keys
from common.recording.environment import UNKNOWN_DEVICE, read_environment

MAX_KEYS = 3  # keys in a label; if more keys differ, the label has only those that are needed to distinguish the runs
MAX_LETTERS = 40  # length of a value or a name in a label


def make_labels_unique(runs: Sequence[Run]) -> None:
    """Add to equal labels the values of the config keys that differ.

    If no value differs, add the name of the run directory, or its path.
    """
    for run, label in zip(runs, build_unique_labels(runs), strict=True):
        run.label = label


def build_unique_labels(runs: Sequence[Run], with_paths: bool = True) -> list[str]:
    """Return the labels, with texts in parentheses that distinguish equal ones: values, else names, else paths.

    Args:
        runs: The runs.
        with_paths: Whether the names and paths of run directories may distinguish runs.
    """
    additions: list[list[str]] = [[] for _ in runs]  # for each run, the texts in the parentheses of its label

    def build_labels() -> list[str]:
        return [
            f"{run} ({', '.join(texts)})" if texts else run.label for run, texts in zip(runs, additions, strict=True)
        ]

    by_paths = (_get_directory_names, _get_paths) if with_paths else ()
    for describe in (_describe_differing_values, _describe_differing_versions, *by_paths):
        indexes_by_label: dict[str, list[int]] = {}
        for index, label in enumerate(build_labels()):
            indexes_by_label.setdefault(label, []).append(index)
        for indexes in indexes_by_label.values():
            texts = describe([runs[index] for index in indexes]) if len(indexes) > 1 else []
            for index, text in zip(indexes, texts, strict=False):  # no texts if this way finds no difference
                additions[index].append(text)
    return build_labels()


def _describe_differing_values(runs: list[Run]) -> list[str]:
    """Return the differing values of each run as "train.seed=1"; nothing if no key differs."""
    keys = _find_differing_keys(runs)
    if not keys:
        return []
    return [", ".join(f"{key}={_shorten(format_value(run.config[key]))}" for key in keys) for run in runs]


def _describe_differing_versions(runs: list[Run]) -> list[str]:
    """Return the differing versions and devices of each run as "torch 2.14.1"; nothing if they are equal."""
    environments = [read_environment(run.summary) for run in runs]
    versions = [{"device": environment["device"], **environment["versions"]} for environment in environments]
    if any(names["device"] == UNKNOWN_DEVICE for names in versions):
        versions = [{**names, "device": UNKNOWN_DEVICE} for names in versions]
    packages = [package for package in versions[0] if len({str(names.get(package)) for names in versions}) > 1]
    if not packages:
        return []
    return [
        ", ".join(f"{package} {_shorten(names.get(package, 'unknown'))}" for package in packages[:MAX_KEYS])
        for names in versions
    ]


def _find_differing_keys(runs: list[Run]) -> list[str]:
    """Return the keys that all runs have, but with different values. Keys that only concern a host do not count."""
    common_keys = set.intersection(*(set(run.config) for run in runs))
    by_values: dict[tuple[str, ...], str] = {}  # key by its values in all runs; the first of keys with equal values
    scopes = {name: key.scope for name, key in collect_keys().items()}
    for key in sorted(common_keys, key=_build_rank(list(runs[0].config), scopes)):
        values = tuple(format_value(run.config[key]) for run in runs)
        if len(set(values)) > 1 and scopes.get(key) is not Scope.HOST:
            by_values.setdefault(values, key)
    if len(by_values) <= MAX_KEYS:
        return list(by_values.values())
    needed_keys: list[str] = []
    needed_values: list[tuple[str, ...]] = [()] * len(runs)  # for each run, its values of the needed keys
    for values, key in by_values.items():
        extended = [(*earlier, value) for earlier, value in zip(needed_values, values, strict=True)]
        if len(set(extended)) > len(set(needed_values)):  # the key distinguishes runs that were equal until now
            needed_keys, needed_values = [*needed_keys, key], extended
    return needed_keys


def _build_rank(config_keys: list[str], scopes: Mapping[str, Scope]) -> Callable[[str], tuple[bool, bool, int]]:
    """Return a function that ranks keys by how much they say to a reader.

    First come kinds, names and the length of the run, then other keys that may change the curve, then the rest. Keys of
    one rank keep the order of the config. A key without a scope may change the curve.
    """

    def rank(key: str) -> tuple[bool, bool, int]:
        is_telling = key in LENGTH_KEYS or key.endswith((".kind", ".name"))
        return scopes.get(key) is Scope.RUN and not is_telling, not is_telling, config_keys.index(key)

    return rank


def _get_directory_names(runs: list[Run]) -> list[str]:
    return [_shorten(run.path.resolve().name) for run in runs]


def _get_paths(runs: list[Run]) -> list[str]:
    return [str(run.path) for run in runs]


def _shorten(text: str) -> str:
    """Replace the middle of a long text by an ellipsis."""
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS // 2]}…{text[-MAX_LETTERS // 2 :]}"


def format_value(value: object) -> str:
    """Format a value of config.yaml or summary.json. A mapping becomes a text such as "torch 2.13.0, python 3.11"."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(format_value(entry) for entry in value)
    return "null" if value is None else str(value)
