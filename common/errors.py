"""Errors that a user can fix, requests to stop, and the exit codes of both."""

import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

FAILURE, USER_ERROR = 1, 2  # exit codes; the second says that the user can fix the error
# Control characters but for tabs and ends of lines, and those that change the direction of a text.
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")  # Keras colours its errors


class UserError(ValueError):
    """A mistake in a config, a file or an environment.

    The message is one line: the key or the file, what is wrong, and what to do. It may quote a file of someone else, so
    it has no control characters.
    """

    exit_code = USER_ERROR

    def __init__(self, message: str) -> None:
        super().__init__(escape_control_characters(message))


class PeerTimeout(UserError):  # noqa: N818  named as TimeoutError would be confused with Python's
    """A process of another host did not connect in time.

    The exit code lets a scheduler try again, unlike the exit code of a mistake.
    """

    exit_code = FAILURE


def escape_control_characters(text: str) -> str:
    r"""Return a text that a terminal shows as it is: an escape character, which begins a command, becomes \x1b."""
    return CONTROL_CHARACTER.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def first_line(text: object) -> str:
    """Return the first line of a text or of the message of an error."""
    return next(iter(str(text).splitlines()), "")


def one_line(text: object) -> str:
    """Return a text or the message of an error on one line."""
    return " ".join(str(text).split())


def error_reason(error: BaseException) -> str:
    """Return the reason that the operating system gives for an error, or else its message, on one line."""
    if isinstance(error, shutil.Error):  # of copytree: a list of (source, target, reason)
        return one_line(error.args[0][0][2])
    return error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)


def describe_error(error: BaseException) -> str:
    """Return the type of a library's error and at most 300 characters of its message, on one line."""
    message = one_line(TERMINAL_CODE.sub("", str(error)))[:300]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def build_write_error(place: object, error: Exception) -> UserError:
    """Return the error for a file or a directory that cannot be written."""
    reason = error_reason(error)
    return UserError(f"{place}: cannot be written ({reason}); make space or choose another place")


@contextmanager
def report_write_errors(place: object) -> Iterator[None]:
    """Raise UserError for an OSError of the body, which writes to `place`, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        raise build_write_error(place, error) from error


class Interrupted(Exception):  # noqa: N818  a request to stop is no error
    """A signal asked the run to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum
