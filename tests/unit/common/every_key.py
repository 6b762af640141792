"""A config for every key that there is, and the same config with another value of that key, and of no other."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from common.config.compose import collect_values
from common.config.schema import GROUPS, Config
from common.data.cache import Cache

# A config says nothing of the content of its data: here it is the same for all of them.
CACHE = Cache(Path("cache"), "fingerprint", None, None, [])  # type: ignore[arg-type]


def _filled(schema: Any) -> Any:
    """An instance of a schema whose values are all 0: what reads only whether values differ takes any."""
    return schema(**{each.name: _filled(each.type) if is_dataclass(each.type) else 0 for each in fields(schema)})


def _changed(section: Any, name: str) -> Any:
    first, _, rest = name.partition(".")
    return replace(section, **{first: _changed(getattr(section, first), rest) if rest else 1})


def _pairs() -> Iterator[tuple[str, Config, Config]]:
    whole: Config = _filled(Config)
    for group, kinds in GROUPS.items():
        for schema in kinds.values():
            config = replace(whole, **{group: _filled(schema)})
            for name in collect_values(config):
                yield name, config, _changed(config, name)


# By the name of the key. If several kinds share a key, the last of them is here.
PAIRS: dict[str, tuple[Config, Config]] = {name: (config, other) for name, config, other in _pairs()}
