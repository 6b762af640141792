"""The arguments of a recorder: their checks, and the record that it follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.recording.following import open_follower
from tf_impl.record.model_facts import find_layer_class
from tf_impl.record.optimizer_facts import check_optimizer

if TYPE_CHECKING:
    from tf_impl.record.follower import Follower


def check_arguments(model: object, optimizer: object, steps: object) -> None:
    """Raise ValueError if an argument is wrong."""
    find_layer_class(model)
    check_optimizer(optimizer)
    check_steps(steps)


def check_steps(steps: object) -> None:
    """Raise ValueError if the number of steps is wrong."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps={steps}: pass the number of optimizer steps to record, at least 1")


def follow_record(follow: str | Follower | None, map_file: str | None, directory: str) -> Follower | None:
    """Open the record that a script follows: this imports all of Lockstep. Return None if the script follows none.

    Args:
        follow: The directory of the followed record, or the Follower that an earlier call returned.
        map_file: The file that pairs the variables of the two models.
        directory: The directory of the script's own record.
    """

    def import_follower() -> type[Follower]:
        from tf_impl.record.follower import Follower

        return Follower

    follower: Follower | None = open_follower(follow, map_file, directory, import_follower)
    return follower
