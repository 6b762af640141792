"""Reader of config.yaml, the config of a run. It imports no module of the user and resolves no interpolation.

`common.config.compose` writes the file, and converts what this module reads to a `Config`.
"""

from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from common.config.interpolations import unescape_interpolations
from common.config.keys import Value
from common.config.legacy import upgrade_values
from common.errors import UserError, one_line
from common.records.files import read_bytes

CONFIG = "config.yaml"
MAX_BYTES, MAX_DEPTH, MAX_TEXT = 4 << 20, 50, 100_000  # limits of a saved config; MAX_TEXT: characters of one value
Section = dict[str, Value]  # the values of a section by key, without the name of the section


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the first needs libyaml
    """Loader that makes only numbers, texts, dates, lists and mappings, and refuses a key that is given twice."""

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        if len({*map(str, keys)}) < len(keys):
            raise yaml.constructor.ConstructorError("a key is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_values(file: Path) -> Section:
    """Read the sections of a config that `save_config` wrote.

    Raises:
        UserError: the file is not a YAML mapping, or has aliases, tags or interpolations: no saved config has them.
    """
    try:
        text = read_bytes(file, MAX_BYTES).decode()
        _check_events(text)
        values = unescape_interpolations(yaml.load(text, _Loader))
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file}: not a saved config: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"{file}: not a saved config: not a mapping of keys to values")
    return values


def read_flat_values(file: Path) -> dict[str, Value]:
    """Read a config that any version of Lockstep saved. Return the values by today's keys: {"train.seed": 1, ...}."""
    return upgrade_values(dict(_flatten(read_values(file))))


def _check_events(text: str) -> None:
    """Raise ValueError for aliases and depth, whose cost may exceed the length of the text by far, and for tags."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("has YAML aliases, which no saved config has")
        if getattr(event, "tag", None):
            raise ValueError(f"has the YAML tag {event.tag[:100]}, which no saved config has")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
            raise ValueError(f"has a value of {len(event.value)} characters")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"has more than {MAX_DEPTH} levels")


def _flatten(section: Mapping[str, Value], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
