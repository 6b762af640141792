"""Config keys: the limits of their values, and what must agree on them.

A field is the one place for a key's limits, choices, unit and scope. Validation, `--help`, the resume guard, the
agreement of hosts and the comparison of runs all read it from there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from common.errors import UserError


class Scope(Enum):
    """What must agree on a key's value."""

    CURVE = "decides the curve: a resumed run, all hosts, and runs that are compared must agree"
    SOURCE = "names where data or weights come from: the fingerprints of their content must agree instead"
    RUN = "the same on all hosts; does not decide the curve"
    HOST = "a host's own"


CURVE, SOURCE, RUN, HOST = Scope


@dataclass(frozen=True)
class Key:
    """The limits, unit and scope of a config key. Limits are inclusive but for `above` and `below`."""

    scope: Scope
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    finite: bool = True
    unit: str = ""
    null: str = ""  # what null means
    type: Any = None  # of the values, as the field is annotated

    def check(self, name: str, value: Any) -> None:
        """Raise UserError where the value is outside the limits. Only numbers and strings have any."""
        if self.choices and value not in self.choices:
            raise UserError(f"{name}={value}: no such choice; there are {', '.join(self.choices)}")
        if isinstance(value, int | float) and not self._admits(value):
            raise UserError(
                f"{name}={value}: must be {self.limits()}" + (f", or null {self.null}" if self.null else "")
            )

    def _admits(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (math.isfinite(value) or not (self.finite and self.limits()))
        )

    def limits(self) -> str:
        """The limits in words; empty where there are none."""
        named = (
            ("at least", self.at_least),
            ("above", self.above),
            ("at most", self.at_most),
            ("less than", self.below),
        )
        words = [f"{word} {limit:g}" for word, limit in named if limit is not None]
        if words and self.finite and self.at_most is None and self.below is None:
            words.append("finite")
        return " and ".join(words)

    def describe(self) -> str:
        """The choices, the limits and the unit in words; empty where there are none."""
        return "; ".join(filter(None, (", ".join(self.choices), self.limits(), self.unit)))


def key(scope: Scope, **limits: Any) -> Any:
    """A dataclass field for a config key. It has no default: conf/ holds the values."""
    return field(metadata={"key": Key(scope, **limits)})


def section() -> Any:
    """A dataclass field for a section, whose schema has the keys."""
    return field()


def list_keys(schema: type, prefix: str = "") -> Iterator[tuple[str, Key]]:
    """The keys of a schema with their full names, those of nested schemas too."""
    for each in fields(schema):
        name = f"{prefix}{each.name}"
        if isinstance(each.type, type) and is_dataclass(each.type):
            yield from list_keys(each.type, f"{name}.")
        else:
            yield name, replace(each.metadata["key"], type=each.type)


def iterate_keys(schema: object, prefix: str = "") -> Iterator[tuple[str, Key, Any]]:
    """The full names, keys and values of an instance of a schema. Kinds may have keys of one name and other limits."""
    for each in fields(schema):  # type: ignore[arg-type]
        value = getattr(schema, each.name)
        if is_dataclass(value):
            yield from iterate_keys(value, f"{prefix}{each.name}.")
        else:
            yield f"{prefix}{each.name}", each.metadata["key"], value
