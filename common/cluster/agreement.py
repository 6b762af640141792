"""What the processes of a run must have in common: the same config, data and weights.

A difference would not stop a run: it would train something else, or wait forever.
"""

from collections.abc import Mapping
from typing import Any

from common.config.compose import collect_values
from common.config.keys import CURVE, RUN
from common.errors import PeerTimeout, UserError
from common.run.context import RunContext


def collect_shared_settings(context: RunContext) -> dict[str, Any]:
    """What must be the same in every process of a run, by key."""
    return {**collect_values(context.config, CURVE, RUN), **context.inputs.fingerprints}


def describe_disagreement(name: str, values: Mapping[str, Any], leader: str, expected: Mapping[str, Any]) -> str | None:
    """Return the error for a process whose shared settings differ from those of its leader, or None."""
    keys = [key for key in expected if key in values and expected[key] != values[key]]
    if not keys:
        return None
    listed = [f"{key} ({values[key]}, not {expected[key]})" if "." in key else key for key in keys]
    return f"{name} differs from {leader} in {', '.join(listed)}; give every host the same"


def encode_error(problem: UserError | None) -> dict[str, Any] | None:
    """What one process sends to the others where they cannot begin, as JSON has it; None where they can."""
    return None if problem is None else {"problem": str(problem), "absent": isinstance(problem, PeerTimeout)}


def decode_error(message: Mapping[str, Any] | None) -> UserError | None:
    """The error for what another process sent."""
    return None if message is None else (PeerTimeout if message["absent"] else UserError)(message["problem"])
