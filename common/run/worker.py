"""One process of a run, on either side. It joins the group of all ranks, makes the strategy and trains."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from common.errors import USER_ERROR, Interrupted, UserError, describe_error
from common.run.chief import log_stack_trace, train_as_chief
from common.run.context import RunContext
from common.run.directory import make_profile_path
from common.run.progress import FAILED_START
from common.run.summary import write_aborted_summary
from common.training.loop import Loop, Profile
from common.training.stop import Stop
from common.training.strategy import Strategy

WAIT_SECONDS = 9.0  # how long another rank waits for the chief to save the last checkpoint before a stop


class StopChannel(Protocol):
    """Connection over which the ranks agree on the step to stop after; common.cluster.stop_server implements it."""

    def attach(self, stop: Stop) -> None:
        """Let the channel decide when this rank stops."""

    def wait(self, seconds: float) -> bool:
        """Wait until the chief has closed the channel. Return whether it has."""

    def close(self) -> None:
        """Leave the channel."""


class Group(Protocol):
    """The ranks of a run, as one of them sees it. A group of one rank has no channel."""

    @property
    def rank(self) -> int:
        """Return the number of this rank, from 0."""

    @property
    def channel(self) -> StopChannel | None:
        """Return the channel over which the ranks agree on a stop."""


AnyGroup = TypeVar("AnyGroup", bound=Group)


@dataclass(frozen=True)
class SideRuntime(Generic[AnyGroup]):
    """The functions of one framework that a training process calls.

    Attributes:
        join_group: waits for the other ranks of the run, and returns their group.
        make_strategy: makes the strategy of the config.
        profile: opens a context that writes a trace of its body to a path.
        count_compilations: returns the fields of summary.json about compilation.
        describe_environment: returns the device and the flags that decide how this process rounds.
    """

    join_group: Callable[[RunContext], AnyGroup]
    make_strategy: Callable[[RunContext, AnyGroup], Strategy]
    profile: Callable[[Path], AbstractContextManager[None]]
    count_compilations: Callable[[], Mapping[str, float]]
    describe_environment: Callable[[], Mapping[str, object]]


def train_rank(context: RunContext, side: SideRuntime[AnyGroup]) -> int:
    """Train as one rank of a run. Return the exit code of this process. Only the main thread may call it."""
    stop = Stop()
    try:
        with record_failed_start(context):
            group = side.join_group(context)
            if group.channel is not None:
                group.channel.attach(stop)
            strategy = side.make_strategy(context, group)
            if context.inputs.checkpoint is not None:
                strategy.load(context.inputs.checkpoint)
    except UserError as error:
        _report_failed_start(context, error)
        return error.exit_code
    stop.listen()  # again, since TensorFlow's collectives have replaced the handler of SIGTERM
    profile = _choose_profile(context, side, group.rank)
    try:
        if context.is_chief:
            environment = {**side.describe_environment()}
            return train_as_chief(context, strategy, stop, profile, side.count_compilations, environment)
        Loop(context.config, strategy, context.inputs, stop, profile=profile).run()
        strategy.report()
        return 0
    except UserError as error:
        _report_failed_start(context, error)
        return error.exit_code
    except Interrupted as interruption:
        if group.channel is not None:
            group.channel.wait(WAIT_SECONDS)
        return interruption.exit_code
    finally:
        if group.channel is not None:
            group.channel.close()


@contextmanager
def record_failed_start(context: RunContext) -> Iterator[None]:
    """Log an unexpected error of the body, if this is the chief, and raise it again. The body precedes the first step.

    The command copies the error from the log to the summary, unless another process has failed before.
    """
    try:
        yield
    except Exception as error:
        if context.is_chief and not isinstance(error, UserError):
            log_stack_trace(context.run_dir, error, f"{FAILED_START}{describe_error(error)}")
        raise


def _report_failed_start(context: RunContext, error: UserError) -> None:
    """Record a user's error in the summary, if this is the chief. Print it if the command will not print it.

    The command, which started this process, prints the error in the summary unless a user can fix it (USER_ERROR).
    """
    if not context.is_chief or error.exit_code == USER_ERROR:
        print(f"error: {error}", file=sys.stderr)
    if context.is_chief:
        write_aborted_summary(context.run_dir, context.config, context.framework, "failed", str(error))


def _choose_profile(context: RunContext, side: SideRuntime[AnyGroup], rank: int) -> Profile | None:
    if not context.config.train.profile or context.config.run_dir is None:
        return None
    return partial(side.profile, make_profile_path(context.run_dir, rank))
