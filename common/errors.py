"""Errors that a user can fix, stops on request, and the exit codes for both."""

import re
import signal

FAILURE, USER_ERROR = 1, 2  # exit codes; the second is for what a user can fix
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")  # of Keras's errors


class UserError(ValueError):
    """A mistake in a config, a file or an environment; its message is one line: where, what is wrong, what to do."""

    exit_code = USER_ERROR


class PeerTimeout(UserError):
    """Another host, or a process on it, did not arrive. A scheduler may try again, unlike after a mistake."""

    exit_code = FAILURE


def first_line(text: object) -> str:
    """Return the first line of a text or of the message of an error."""
    return next(iter(str(text).splitlines()), "")


def one_line(text: object) -> str:
    """Return a text or the message of an error on one line."""
    return " ".join(str(text).split())


def error_reason(error: BaseException) -> str:
    """Return the reason that the operating system gives for an error, or else its message, on one line."""
    return error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)


def describe_error(error: BaseException) -> str:
    """Return the type of a library's error and at most 300 characters of its message, on one line."""
    message = one_line(TERMINAL_CODE.sub("", str(error)))[:300]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def build_write_error(place: object, error: Exception) -> UserError:
    """The error for a file or directory that could not be written."""
    reason = error_reason(error)
    return UserError(f"{place}: cannot be written ({reason}); make space or choose another place")


class Interrupted(Exception):
    """A signal asked the run to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum
