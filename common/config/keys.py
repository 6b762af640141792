"""Keys of the config: the limits of their values, and the scope in which a value must agree.

A schema is a frozen dataclass; each of its fields is a key, or a section of further keys. The full name of a key
includes its sections, such as train.early_stopping.patience. The field is the only place that declares a key's limits,
choices, unit and scope. Validation, `--help`, resuming, the agreement of hosts and the comparison of runs all read them
from the field.
"""

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

from common.errors import UserError

Value = object  # the value of a key: a number, a text, None, a list of these, or a mapping


class Scope(Enum):
    """The scope in which the values of a key must agree."""

    CURVE = "decides the curve: a resumed run, all hosts, and runs that are compared must agree"
    SOURCE = "names where data or weights come from: the fingerprints of their content must agree instead"
    RUN = "the same on all hosts; does not decide the curve"
    HOST = "may differ from host to host"


CURVE, SOURCE, RUN, HOST = Scope


@dataclass(frozen=True)
class Key:
    """The limits, the unit and the scope of a config key."""

    scope: Scope
    choices: tuple[str, ...] = ()  # the allowed texts; empty: any text
    at_least: float | None = None  # inclusive limit
    at_most: float | None = None  # inclusive limit
    above: float | None = None  # exclusive limit
    below: float | None = None  # exclusive limit
    finite: bool = True  # whether infinity and nan are refused; keys without limits never refuse them
    unit: str = ""  # the unit of numbers, for --help
    names_code: bool = False  # whether the value names a Python object to import, as module:name
    null: str = ""  # what null means, for errors: words that follow "null", such as "for no clipping"
    type: object = None  # the annotation of the field; `list_keys` fills it in

    def check(self, name: str, value: Value) -> None:
        """Raise UserError if the value is outside the limits. Only numbers and texts have limits."""
        if self.choices and value not in self.choices and not (value is None and self.null):
            raise UserError(f"{name}={value}: no such choice; there are {', '.join(self.choices)}")
        if isinstance(value, int) and value.bit_length() > 63:  # NumPy's integers do not hold it
            raise UserError(f"{name}: must be less than 2**63")
        if isinstance(value, int | float) and not self._is_within_limits(value):
            null = f", or null {self.null}" if self.null else ""
            raise UserError(f"{name}={value}: must be {self.describe_limits()}{null}")

    def _is_within_limits(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (math.isfinite(value) or not (self.finite and self.describe_limits()))
        )

    def describe_limits(self) -> str:
        """Return a text with the limits, or "" if there are none."""
        limits = (
            ("at least", self.at_least),
            ("above", self.above),
            ("at most", self.at_most),
            ("less than", self.below),
        )
        words = [f"{word} {limit:g}" for word, limit in limits if limit is not None]
        if words and self.finite and self.at_most is None and self.below is None:
            words.append("finite")
        return " and ".join(words)

    def describe(self) -> str:
        """Return a text with the choices, the limits and the unit, or "" if there are none."""
        return "; ".join(filter(None, (", ".join(self.choices), self.describe_limits(), self.unit)))


# Both functions return a dataclass field. Their return type is Any, because it must fit the annotation of every field.
def key(scope: Scope, **limits: Any) -> Any:  # noqa: ANN401  the fields of Key; a field fits any annotation
    """Return a dataclass field for a config key. limits: the other fields of `Key`.

    The field has no default, since the files in conf/ hold the values.
    """
    return field(metadata={"key": Key(scope, **limits)})


def section() -> Any:  # noqa: ANN401  a field fits any annotation
    """Return a dataclass field for a section of keys. The type of the field is the schema of the section."""
    return field()


def find_section_schema(schema_field: "Field[object]") -> type | None:
    """Return the schema of a field that is a section of keys, or None for a key."""
    return schema_field.type if isinstance(schema_field.type, type) and is_dataclass(schema_field.type) else None


def list_keys(schema: type, prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Yield the full name and the key of each field of a schema, including its sections. prefix: such as "train."."""
    for name, declared in _read_keys(schema).items():
        yield f"{prefix}{name}", declared


@cache  # because some callers list the keys of all schemas for each key of a config
def _read_keys(schema: type) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for schema_field in fields(schema):
        if (section_schema := find_section_schema(schema_field)) is not None:
            keys |= dict(list_keys(section_schema, f"{schema_field.name}."))
        else:
            keys[schema_field.name] = replace(schema_field.metadata["key"], type=schema_field.type)
    return keys


def iterate_keys(settings: object, prefix: str = "") -> Iterator[tuple[str, Key, Value]]:
    """Yield the full names, the keys and the values of an instance of a schema.

    The keys are declared by the instance's own class: two kinds may have a key of the same name with other limits.
    """
    for schema_field in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, schema_field.name)
        if is_dataclass(value):
            yield from iterate_keys(value, f"{prefix}{schema_field.name}.")
        else:
            yield f"{prefix}{schema_field.name}", schema_field.metadata["key"], value
