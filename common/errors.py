"""Errors that a user can fix, stops on request, and the exit codes for both."""

import signal

FAILURE, USER_ERROR = 1, 2  # exit codes; the second is for what a user can fix


class UserError(ValueError):
    """A mistake in a config, a file or an environment; its message is one line: where, what is wrong, what to do."""

    exit_code = USER_ERROR


class PeerTimeout(UserError):
    """Another host, or a process on it, did not arrive. A scheduler may try again, unlike after a mistake."""

    exit_code = FAILURE


def build_write_error(place: object, error: Exception) -> UserError:
    """The error for a file or directory that could not be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    return UserError(f"{place}: cannot be written ({reason}); make space or choose another place")


class Interrupted(Exception):
    """A signal asked the run to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum
