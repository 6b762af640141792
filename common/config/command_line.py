"""What every command has in common: errors of one line, the jobs of a sweep, and output that may go unread."""

import argparse
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from common.config.compose import CONF
from common.config.overrides import MULTIRUN, name_job, normalize_arguments, split_flags
from common.config.schema import collect_keys
from common.errors import FAILURE, USER_ERROR, Interrupted, UserError, first_line, one_line
from common.output import survive_closed_output

T = TypeVar("T")

PLAN = "--plan" in sys.argv  # say what would be done, and do not train
DEBUG = "--debug" in sys.argv or "HYDRA_FULL_ERROR" in os.environ
KEYS = "`--cfg job` lists the keys (data=, model= and strategy= choose which exist)"
FIRST_SPEAKS_SECONDS = 3.0  # by when the first process of this machine has reported the same error

failed_jobs: list[str] = []


@contextmanager
def run_command(strategies: Sequence[str]) -> Iterator[None]:
    """Around a function of `hydra.main`: makes its arguments readable; exits with 1 if a job of a sweep failed."""
    with report_user_errors(strategies):
        sys.argv[1:] = normalize_arguments(sys.argv[1:])
        yield
        if failed_jobs:
            print(f"error: {len(failed_jobs)} of the sweep's jobs failed: {'; '.join(failed_jobs)}", file=sys.stderr)
            sys.exit(FAILURE)


@contextmanager
def run_job(strategies: Sequence[str]) -> Iterator[None]:
    """Inside of `hydra.main`, since Hydra adds a line of its own to an error that leaves a job.

    The jobs of a sweep are independent: the next one begins though this one failed, unless it was interrupted.
    """
    if not is_sweep_job():
        with report_user_errors(strategies):
            yield
        return
    name = describe_job()
    print(f"job {HydraConfig.get().job.num}: {name}", flush=True)
    try:
        with report_user_errors(strategies):
            yield
    except SystemExit as exit:
        if not isinstance(exit.code, int) or exit.code > 128:
            raise
        failed_jobs.append(name)


def is_sweep_job() -> bool:
    """Whether this is a job of a sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def get_sweep_directory() -> Path:
    """Where the run directories of this sweep are."""
    return Path(HydraConfig.get().sweep.dir)


def describe_job() -> str:
    """What distinguishes this job of a sweep from the others, such as "replicas=2,seed=1"."""
    return name_job(sys.argv[1:], HydraConfig.get().overrides.task)


def list_arguments_without(*keys: str) -> list[str]:
    """The arguments of this job but for these keys, for another command that is to compose the same config."""
    given = HydraConfig.get().overrides
    flags, _ = split_flags(sys.argv[1:])
    searched = [each for each in given.hydra if each.startswith("hydra.searchpath=")]
    overrides = [each for each in given.task if not each.partition("=")[0].lstrip("+~").startswith(keys)]
    return [*(flag for flag in flags if flag not in MULTIRUN), *searched, *overrides]


@contextmanager
def report_user_errors(strategies: Sequence[str]) -> Iterator[None]:
    """Print a user's error as one line and exit with 2; `--debug` or HYDRA_FULL_ERROR=1 shows the stack trace.

    strategies: those to list for one that does not exist.
    """
    survive_closed_output()
    sys.argv = [argument for argument in sys.argv if argument not in ("--debug", "--plan")]
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if DEBUG:
            traceback.print_exc()
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(FIRST_SPEAKS_SECONDS)  # torchrun ends this process when the first one has failed in the same way
        print(f"error: {explain_error(error, strategies)}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, UserError) else USER_ERROR)
    except (KeyboardInterrupt, Interrupted) as error:  # before the run's processes have started: they handle it
        print(f"interrupted: {error}".removesuffix(": "), file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, Interrupted) else 130)
    finally:
        if before is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


def create_parser(module: str, description: str | None, defaults: Path) -> argparse.ArgumentParser:
    """The parser of a command whose keys are a file of conf/, which its help shows."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"keys, with their defaults:\n\n{defaults.read_text()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    return parser


def compose_options(schema: type[T], name: str, overrides: Sequence[str], keys: str, prefix: str = "") -> T:
    """conf/NAME.yaml with Hydra overrides as an instance of a schema.

    keys: which there are, in words, for errors. prefix: of the keys on the command line. Raises UserError for unknown
    keys, for values of the wrong type and for a value that is missing.
    """
    try:
        with initialize_config_dir(CONF, version_base="1.3"):
            config = compose(name, overrides=list(overrides))
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config))
    except MissingMandatoryValue as error:
        raise UserError(f"{prefix}{error.full_key}: has no value; give {prefix}{error.full_key}=...") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(prefix + explain_error(error, ()).replace(KEYS, keys)) from error
    assert isinstance(settings, schema)
    return settings


def explain_error(error: Exception, strategies: Sequence[str]) -> str:
    """One line for an error of ours, of Hydra's or of OmegaConf's."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        built_in = {path.stem for path in Path(CONF, "strategy").glob("*.yaml")}  # of both sides
        of_extensions = [option for option in error.options if option not in built_in]
        choices = [*strategies, *of_extensions] if group == "strategy" else error.options
        return f"{group}={choice}: no such choice; there are {', '.join(choices)}"
    if isinstance(error, OverrideParseException):
        cure = "quote the value for Hydra too: 'key=\"value\"'" if "=" in str(error.override) else KEYS
        return f"{error.override}: not a key=value that Hydra can read ({first_line(text)}); {cure}"
    if match := re.match(r"Ambiguous value for argument '(.+?)' *1\. To use it as a list", text, re.DOTALL):
        return f"{match[1].strip()}: has several values; add -m to train with each in turn"
    if match := re.match(r"Could not override '([^']+)'", text):
        return _no_such_key(match[1])
    if match := re.match(r"UserError raised while resolving interpolation: (.*)", text):
        return match[1]
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        if isinstance(error, ConfigKeyError | ConfigAttributeError):
            return _no_such_key(error.full_key)
        reason = first_line(error.msg)
        if reason.startswith("Incompatible value 'None'"):
            reason = f"must not be null; give {error.full_key}=..."
        if "is not a ListConfig" in reason:
            reason = f"must be a list; give '{error.full_key}=[...,...]'"
        return f"{error.full_key}: {reason}"
    return one_line(text)


def _no_such_key(name: str) -> str:
    others = [each for each in collect_keys() if each != name]
    near = get_close_matches(name, others, 1, 0.8) or [each for each in others if each.endswith(name)]
    return f"{name}: no such key here; " + (f"did you mean {near[0]}? " if near else "") + KEYS
