"""Errors that a user can fix, requests to stop, the exit codes of both, and descriptions of the errors of libraries."""

import os
import re
import shutil
import signal
import site
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FAILURE, USER_ERROR = 1, 2  # exit codes; the second says that the user can fix the error
# Control characters but for tabs and ends of lines, and those that change the direction of a text.
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")  # Keras colours its errors
PACKAGE_FOLDERS = frozenset(("site-packages", "dist-packages"))  # names of folders of installed packages
FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)  # a line of a stack trace in an error's message
TRACED = "in user code:"  # begins the message of an error that TensorFlow meets when it traces a function
GENERATED = "__autograph_generated_file"  # a copy of a function that TensorFlow writes, and removes when it exits
GRAPH_NOTES = ("Graph execution error:", "Detected at node", "<stack traces unavailable>")


class UserError(ValueError):
    """A mistake in a config, a file or an environment.

    The message is one line: the key or the file, what is wrong, and what to do. The message has no control characters,
    because it may quote a file of someone else.
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
    r"""Return a text that a terminal shows unchanged: an escape character, which begins a command, becomes \x1b."""
    return CONTROL_CHARACTER.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def first_line(text: object) -> str:
    """Return the first line of a text or of the message of an error."""
    return next(iter(str(text).splitlines()), "")


def one_line(text: object) -> str:
    """Return a text or the message of an error on one line."""
    return " ".join(str(text).split())


def error_reason(error: BaseException) -> str:
    """Return the operating system's reason for an error, or the error's message if there is none, on one line."""
    if isinstance(error, shutil.Error):  # copytree raises it with a list of (source, target, reason)
        return one_line(error.args[0][0][2])
    return error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)


def describe_error(error: BaseException) -> str:
    """Return the type of a library's error, at most 300 characters of its message, and the user's line, on one line."""
    text = TERMINAL_CODE.sub("", str(error))
    message = one_line(_remove_frames(text))[:300]
    line = _find_user_line(error, text)
    return f"{type(error).__name__}{': ' if message else ''}{message}{f' ({line})' if line else ''}"


def _remove_frames(text: str) -> str:
    """Return the message of an error without the stack frames and the arguments that TensorFlow and Keras add to it."""
    if text.startswith(TRACED):
        text = re.split(r"\n {4}[\w.]+: ", text)[-1]  # the message, which follows the last frame and the error's type
        return _remove_frames("\n".join(line.removeprefix("    ") for line in text.splitlines()))
    if text.startswith("Graph execution error:"):
        lines = [line for line in text.splitlines() if not line.startswith((" ", "\t", *GRAPH_NOTES))]
        return "\n".join(lines)
    if text.startswith("Exception encountered when calling"):
        _, _, message = text.partition("\n\n")
        return _remove_frames(message.partition("\n\nArguments received by")[0])
    return text


def _find_user_line(error: BaseException, text: str) -> str:
    """Return the file and the line of the user's code that the error passed last, or "" if it passed none.

    Args:
        error: The error.
        text: Its message, which names the frames of a function that TensorFlow traced.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    for file, line in reversed([*frames, *((file, int(number)) for file, number in FRAME.findall(text))]):
        user_file = find_user_file(file)
        if user_file is not None:
            return f"{os.path.relpath(user_file)}, line {line}"
    return ""


@cache  # a framework imports thousands of modules, and every description of a model lists all of them
def find_user_file(name: str) -> str | None:
    """Return the resolved path of a Python file of the user's own code; None for any other file.

    Other files belong to the standard library, to installed packages or to Lockstep.
    """
    path = Path(name)
    if path.suffix != ".py" or path.name.startswith(GENERATED) or not path.is_file():
        return None
    resolved = path.resolve()
    if not PACKAGE_FOLDERS.isdisjoint((*path.parts, *resolved.parts)):  # of any environment: PYTHONPATH may name one
        return None
    return None if str(resolved).startswith(_list_excluded_folders()) else str(resolved)


@cache
def _list_excluded_folders() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages and of Lockstep."""
    root = Path(__file__).resolve().parents[1]
    folders = [Path(path).resolve() for path in {*sysconfig.get_paths().values(), *site.getsitepackages()}]
    folders += [root / package for package in ("common", "torch_impl", "tf_impl")]
    return tuple(f"{folder}{os.sep}" for folder in folders)


def build_write_error(location: object, error: Exception) -> UserError:
    """Return the error for a file or a directory that cannot be written."""
    reason = error_reason(error)
    return UserError(f"{location}: cannot be written ({reason}); make space or choose another place")


@contextmanager
def report_write_errors(location: object) -> Iterator[None]:
    """Raise UserError if the body, which writes to `location`, raises OSError, such as for a full disk."""
    try:
        yield
    except OSError as error:
        raise build_write_error(location, error) from error


class Interrupted(BaseException):
    """A signal asked the run to stop.

    Like KeyboardInterrupt it is not an Exception, which the code that the signal interrupts might catch.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum
