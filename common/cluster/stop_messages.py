"""The messages of the ranks of a run, which agree on the last unit before a stop or a checkpoint.

A unit is one batch of training or evaluation, as common.training.stop counts them on every rank, from 1. A member is a
rank other than the chief. It connects to the chief and says hello; the chief welcomes it. A rank asks for
a stop with a StopRequest. The chief then sends Freeze to all members, each answers with the units that it has begun,
and the chief announces the last unit, or the unit after which all save a checkpoint.
"""

from typing import TypedDict


class Hello(TypedDict):
    """First message of a member: the token that the chief gave to the members, and the member's name for the log."""

    hello: str
    name: str


class Welcome(TypedDict):
    """The chief's answer to a Hello with the right token."""

    welcome: bool


class StopRequest(TypedDict):
    """A member's request that all ranks stop: the number of the signal that it received."""

    request: int


class Freeze(TypedDict):
    """The chief's order to begin no further unit: the number of the signal, or SAVE before a checkpoint."""

    freeze: int


class BegunUnits(TypedDict):
    """A member's answer to Freeze: the number of units that it has begun."""

    begun: int


class LastUnit(TypedDict):
    """The chief's decision: the unit after which all ranks stop."""

    last: int


class SaveUnit(TypedDict):
    """The chief's decision: the unit after which all ranks save a checkpoint and continue."""

    save: int
