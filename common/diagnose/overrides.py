"""Overrides of config keys as text in the notation of Hydra, such as train.seed=3, +key=1 or ++key=1."""

from collections.abc import Collection, Iterable


def key_of(override: str) -> str:
    """Return the key of an override, without the + or ++ that adds a key."""
    return override.partition("=")[0].lstrip("+")


def value_of(override: str) -> str:
    """Return the value of an override."""
    return override.partition("=")[2]


def drop_keys(overrides: Iterable[str], keys: Collection[str]) -> list[str]:
    """Return the overrides of all other keys."""
    return [override for override in overrides if key_of(override) not in keys]


def quote_value(value: object) -> str:
    """Return the text from which Hydra reads a value."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{quote_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(quote_value, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return repr(value)
