"""Errors that a user can mend, and how a command shows them: one line, exit code 2."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException


class UserError(ValueError):
    """A mistake in a config, a file or an environment; its message is one line: where, what is wrong, what to do."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print a user's error as one line and exit with 2; `--debug` or HYDRA_FULL_ERROR=1 shows the stack trace."""
    debug = "--debug" in sys.argv or "HYDRA_FULL_ERROR" in os.environ
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if debug:
            raise
        sys.exit(_exit_with(error))


def _exit_with(error: Exception) -> int:
    print(f"error: {explain(error)}", file=sys.stderr)
    return 2


def explain(error: Exception) -> str:
    """One line for an error of ours, of Hydra's or of OmegaConf's."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        return f"{group}={choice}: no such choice; there are {', '.join(error.options)}"
    if match := re.match(r"Could not override '([^']+)'", text):
        return (
            f"{match[1]}: no such key here; `--cfg job` lists the keys (data=, model= and strategy= choose which exist)"
        )
    if isinstance(error, OmegaConfBaseException) and getattr(error, "full_key", None):
        return f"{error.full_key}: {str(error.msg or text).splitlines()[0]}"
    return " ".join(text.split())
