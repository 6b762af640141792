"""Overrides of config keys as text in the notation of Hydra, such as train.seed=3, +key=1 or ++key=1."""

import re
from collections.abc import Collection, Iterable

from hydra.core.override_parser.types import Quote, QuotedString

from common.config.interpolations import escape_interpolations
from common.errors import UserError, one_line

PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # names that Hydra reads in a mapping; it refuses quotes there


def key_of(override: str) -> str:
    """Return the key of an override, without the + or ++ that adds a key."""
    return override.partition("=")[0].lstrip("+")


def value_of(override: str) -> str:
    """Return the value of an override."""
    return override.partition("=")[2]


def drop_keys(overrides: Iterable[str], keys: Collection[str]) -> list[str]:
    """Return the overrides whose key is not one of the keys."""
    return [override for override in overrides if key_of(override) not in keys]


def quote_value(value: object) -> str:
    """Return the text of a value that Hydra reads as exactly this value, without interpolations or calls.

    Raise UserError if a mapping has a name that Hydra cannot read.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        if unreadable := [name for name in value if not PLAIN_NAME.fullmatch(str(name))]:
            raise UserError(
                f"{one_line(unreadable[0])[:100]}: a name in model.arguments that a diagnosis cannot repeat; use ASCII "
                "letters, digits and _"
            )
        return "{" + ",".join(f"{key}:{quote_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(quote_value, value)) + "]"
    if isinstance(value, str):
        text = escape_interpolations(value)
        assert isinstance(text, str)
        return QuotedString(text, Quote.single).with_quotes()
    return repr(value)
