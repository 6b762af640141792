r"""Escaping of OmegaConf's interpolations: parts of a text such as ${train.seed} that stand for another value.

OmegaConf reads `\${` as plain text, so config.yaml stores `\${` for every `${` of the resolved config. Before `${`,
OmegaConf reads two backslashes as one.
"""

import re
from collections.abc import Callable, Collection

from common.config.keys import Value

INTERPOLATION_START = re.compile(r"(\\*)\$\{")  # with the backslashes before it


def escape_interpolations(value: Value) -> Value:
    """Escape every `${` in a value, so that OmegaConf reads it literally."""
    # Double the backslashes before ${, and add one.
    return _map_texts(value, lambda text: INTERPOLATION_START.sub(r"\1\1\\${", text))


def unescape_interpolations(value: Value) -> Value:
    """Undo `escape_interpolations`. Raise ValueError if a text has an interpolation."""

    def unescape(match: re.Match[str]) -> str:
        count, is_escaped = divmod(len(match[1]), 2)
        if not is_escaped:
            raise ValueError(
                "has an interpolation ${...}; a saved config has only values, so replace it with its value"
            )
        return "\\" * count + "${"

    return _map_texts(value, lambda text: INTERPOLATION_START.sub(unescape, text))


def escape_unknown_references(text: str, keys: Collection[str]) -> str:
    """Escape all `${` of a text, unless every `${...}` in it names a config key or calls a resolver, as ${now:%Y} does.

    keys: the keys of the config.
    """
    names = re.findall(r"\$\{([^{}]*)\}", text)
    has_only_simple_references = text.count("${") == len(names)  # none is nested or unclosed
    if has_only_simple_references and all(name in keys or ":" in name for name in names):
        return text
    # After an odd number of backslashes, ${ is escaped already.
    return INTERPOLATION_START.sub(lambda match: match[0] if len(match[1]) % 2 else match[1] + r"\${", text)


def _map_texts(value: Value, convert: Callable[[str], str]) -> Value:
    """Return a value with all its texts converted."""
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, list):
        return [_map_texts(item, convert) for item in value]
    if isinstance(value, dict):
        return {name: _map_texts(item, convert) for name, item in value.items()}
    return value
