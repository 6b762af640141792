"""Errors that a user can fix, and how a command shows them: one line, exit code 2."""

import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

DEBUG = "--debug" in sys.argv or "HYDRA_FULL_ERROR" in os.environ
FAILURE, USER_ERROR = 1, 2  # exit codes; the second is for what a user can fix
CONF_DIRECTORY = Path(__file__).parents[1] / "conf"
KEYS = "`--cfg job` lists the keys (data=, model= and strategy= choose which exist)"


class UserError(ValueError):
    """A mistake in a config, a file or an environment; its message is one line: where, what is wrong, what to do."""


def cannot_be_written(place: object, error: Exception) -> UserError:
    """The error for a file or directory that could not be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    return UserError(f"{place}: cannot be written ({reason}); make space or choose another place")


class Interrupted(Exception):
    """A signal asked the run to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


@contextmanager
def one_line_errors(strategies: Sequence[str]) -> Iterator[None]:
    """Print a user's error as one line and exit with 2; `--debug` or HYDRA_FULL_ERROR=1 shows the stack trace.

    strategies: those to list for one that does not exist. Around a Hydra task it goes inside as well as outside, since
    Hydra adds a line of its own to what leaves a task.
    """
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if DEBUG:
            traceback.print_exc()
        print(f"error: {explain(error, strategies)}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except (KeyboardInterrupt, Interrupted) as error:  # before the run's processes have started: they handle it
        print(f"interrupted: {error}".removesuffix(": "), file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, Interrupted) else 130)
    finally:
        if before is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


def explain(error: Exception, strategies: Sequence[str]) -> str:
    """One line for an error of ours, of Hydra's or of OmegaConf's."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        built_in = {path.stem for path in CONF_DIRECTORY.glob("strategy/*.yaml")}  # of both sides
        of_extensions = [option for option in error.options if option not in built_in]
        choices = [*strategies, *of_extensions] if group == "strategy" else error.options
        return f"{group}={choice}: no such choice; there are {', '.join(choices)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not a key=value that Hydra can read ({text.splitlines()[0]})"
    if match := re.match(r"Could not override '([^']+)'", text):
        return f"{match[1]}: no such key here; {KEYS}"
    if match := re.match(r"UserError raised while resolving interpolation: (.*)", text):
        return match[1]
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        unknown = isinstance(error, ConfigKeyError | ConfigAttributeError)
        return f"{error.full_key}: " + (f"no such key here; {KEYS}" if unknown else str(error.msg).splitlines()[0])
    return " ".join(text.split())
