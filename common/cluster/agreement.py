"""Agreement of the processes of a run on the same config, data and weights.

Without this check, a run whose processes differ would train something else, or wait forever. The scope of a config key
says who must agree on it: CURVE keys decide the loss curve, RUN keys are others that must be the same on all hosts.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import TypedDict

from common.config.compose import collect_values
from common.config.keys import CURVE, RUN
from common.config.schema import RunOptions
from common.errors import PeerTimeout, UserError
from common.run.context import RunContext


class ErrorMessage(TypedDict):
    """An error that one process sends to the others. absent: whether the error is a PeerTimeout."""

    problem: str
    absent: bool


def collect_shared_settings(context: RunContext) -> dict[str, object]:
    """Return the settings and fingerprints that must be the same in every process of a run, by key."""
    return {**collect_values(context.config, CURVE, RUN), **context.inputs.fingerprints}


def describe_disagreement(
    name: str, settings: Mapping[str, object], leader: str, leader_settings: Mapping[str, object]
) -> str | None:
    """Return the error for a process whose settings differ from its leader's in keys that both have, or None.

    Args:
        name: the name of the process in the error.
        settings: what `collect_shared_settings` returned in the process.
        leader: the name of the process that all others are compared with.
        leader_settings: the settings of the leader.
    """
    keys = [key for key, value in leader_settings.items() if key in settings and settings[key] != value]
    if not keys:
        return None
    # Fingerprints, such as "data", are too long to show. Other names without a dot are keys outside all sections.
    options = {field.name for field in fields(RunOptions)}
    differences = [
        f"{key} ({settings[key]}, not {leader_settings[key]})" if "." in key or key in options else key for key in keys
    ]
    return f"{name} differs from {leader} in {', '.join(differences)}; use the same on every host"


def encode_error(error: UserError | None) -> ErrorMessage | None:
    """Return an error that prevents the start of a run as a message for JSON; None for None."""
    return None if error is None else {"problem": str(error), "absent": isinstance(error, PeerTimeout)}


def decode_error(message: ErrorMessage | None) -> UserError | None:
    """Undo `encode_error`."""
    return None if message is None else (PeerTimeout if message["absent"] else UserError)(message["problem"])
