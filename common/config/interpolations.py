"""Interpolations of OmegaConf, which are parts of a text such as ${train.seed} that stand for another value.

A resolved config has no interpolations: a ${ in it is plain text. OmegaConf reads it as text if a backslash is before
it, as in the config.yaml of a run.
"""

import re
from collections.abc import Callable, Collection

from common.config.keys import Value


def escape_interpolations(value: Value) -> Value:
    r"""Return a value whose texts OmegaConf reads literally, because \${ begins no interpolation."""
    # Double the backslashes before ${, and add one.
    return _map_texts(value, lambda text: re.sub(r"(\\*)\$\{", r"\1\1\\${", text))


def unescape_interpolations(value: Value) -> Value:
    """Undo `escape_interpolations`. Raise ValueError if a text has an interpolation."""

    def unescape(match: re.Match[str]) -> str:
        count, is_escaped = divmod(len(match[1]), 2)
        if not is_escaped:
            raise ValueError("has an interpolation, ${...}, which no saved config has")
        return "\\" * count + "${"

    return _map_texts(value, lambda text: re.sub(r"(\\*)\$\{", unescape, text))


def escape_unknown_references(text: str, keys: Collection[str]) -> str:
    """Return a text whose ${...} are interpolations only if each names a key or calls a resolver, such as ${now:%Y}.

    keys: the keys of the config.
    """
    names = re.findall(r"\$\{([^{}]*)\}", text)
    if text.count("${") == len(names) and all(name in keys or ":" in name for name in names):
        return text
    return re.sub(r"(?<!\\)\$\{", r"\\${", text)


def _map_texts(value: Value, convert: Callable[[str], str]) -> Value:
    """Return a value with all its texts converted."""
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, list):
        return [_map_texts(item, convert) for item in value]
    if isinstance(value, dict):
        return {name: _map_texts(item, convert) for name, item in value.items()}
    return value
