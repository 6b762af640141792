"""Behaviour that all commands share: one-line errors, jobs of a sweep, and help.

Hydra composes the config from the files in conf/ and overrides such as strategy=ddp. With -m Hydra sweeps: a job for
each combination of values calls the training function.
"""

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
from common.config.overrides import SWEEP_FLAGS, name_job, normalize_arguments, split_flags
from common.config.schema import collect_keys
from common.errors import (
    FAILURE,
    USER_ERROR,
    Interrupted,
    UserError,
    escape_control_characters,
    first_line,
    one_line,
)
from common.output import survive_closed_output

T = TypeVar("T")

PLAN = "--plan" in sys.argv  # print the plan of the run, and do not train
DEBUG = "--debug" in sys.argv or os.environ.get("HYDRA_FULL_ERROR") == "1"
KEYS_HINT = "`--cfg job` lists the keys (data=, model= and strategy= choose which exist)"
FIRST_ERROR_SECONDS = 3.0  # how long other ranks wait while local rank 0 prints the error that all ranks have

failed_jobs: list[str] = []  # the descriptions of the jobs of this sweep that have failed


@contextmanager
def run_command(strategies: Sequence[str]) -> Iterator[None]:
    """Wrap a call of a `hydra.main` function: report errors in one line, and exit with 1 if jobs of a sweep failed.

    Rewrites the arguments of the command in the form that Hydra reads. strategies: see `report_user_errors`.
    """
    with report_user_errors(strategies):
        sys.argv[1:] = normalize_arguments(sys.argv[1:])
        yield
        if failed_jobs:
            print(f"error: {len(failed_jobs)} of the sweep's jobs failed: {'; '.join(failed_jobs)}", file=sys.stderr)
            sys.exit(FAILURE)


@contextmanager
def run_job(strategies: Sequence[str]) -> Iterator[None]:
    """Wrap the body of a `hydra.main` function: report errors in one line, without the lines that Hydra would add.

    The jobs of a sweep are independent: after a failed job the next job starts, but not after an interrupted job.
    strategies: see `report_user_errors`.
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
    except SystemExit as exit_request:
        if not isinstance(exit_request.code, int) or exit_request.code > 128:  # a signal has interrupted the job
            raise
        failed_jobs.append(name)


def is_sweep_job() -> bool:
    """Check whether this is a job of a sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def get_sweep_directory() -> Path:
    """Return the parent of the run directories of this sweep."""
    return Path(HydraConfig.get().sweep.dir)


def describe_job() -> str:
    """Return the values that only this job of the sweep has, such as "replicas=2,seed=1"."""
    return name_job(sys.argv[1:], HydraConfig.get().overrides.task)


def list_arguments_without(*keys: str) -> list[str]:
    """Return the arguments of this job for another command, without the keys that start with `keys`.

    The other command composes the same config except for these keys.
    """
    overrides = HydraConfig.get().overrides
    flags, _ = split_flags(sys.argv[1:])
    search_path = [override for override in overrides.hydra if override.startswith("hydra.searchpath=")]
    # Hydra calls overrides of the config "task", and overrides of its own settings "hydra".
    task = [override for override in overrides.task if not override.partition("=")[0].lstrip("+~").startswith(keys)]
    return [*(flag for flag in flags if flag not in SWEEP_FLAGS), *search_path, *task]


@contextmanager
def report_user_errors(strategies: Sequence[str] = ()) -> Iterator[None]:
    """Print a user's error as one line and exit with its exit code.

    `--debug` or HYDRA_FULL_ERROR=1 prints the stack trace, too.

    Args:
        strategies: the choices to list if the config names a strategy that does not exist.
    """
    survive_closed_output()
    # PLAN and DEBUG were read at import. Hydra would refuse these flags.
    sys.argv = [argument for argument in sys.argv if argument not in ("--debug", "--plan")]
    full_error = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if DEBUG:
            traceback.print_exc()
        # torchrun ends this process when local rank 0 has failed with the same error.
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(FIRST_ERROR_SECONDS)
        print(f"error: {escape_control_characters(explain_error(error, strategies))}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, UserError) else USER_ERROR)
    except (KeyboardInterrupt, Interrupted) as error:  # before the run's processes have started, which handle signals
        print(f"interrupted: {error}".removesuffix(": "), file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, Interrupted) else 130)
    finally:
        if full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


def create_parser(module: str, description: str | None, defaults: Path) -> argparse.ArgumentParser:
    """Return the parser of a command. Its help shows the file in conf/ that has the command's keys."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"keys, with their defaults:\n\n{defaults.read_text()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    return parser


def compose_options(schema: type[T], name: str, overrides: Sequence[str], keys_hint: str, prefix: str = "") -> T:
    """Return conf/NAME.yaml with overrides, as an instance of a schema.

    Args:
        schema: a dataclass with the keys of the file.
        name: the file in conf/, without its suffix.
        overrides: arguments of the command line, without the prefix.
        keys_hint: how to list the command's keys, which replaces KEYS_HINT in errors.
        prefix: the prefix that the keys have on the command line, such as "bench.".

    Raises:
        UserError: a key is unknown, or a value is missing or has the wrong type.
    """
    try:
        with initialize_config_dir(CONF, version_base="1.3"):
            config = compose(name, overrides=list(overrides))
        options = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config))
    except MissingMandatoryValue as error:
        raise UserError(f"{prefix}{error.full_key}: has no value; give {prefix}{error.full_key}=...") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(prefix + explain_error(error).replace(KEYS_HINT, keys_hint)) from error
    assert isinstance(options, schema)
    return options


def explain_error(error: Exception, strategies: Sequence[str] = ()) -> str:
    """Return one line for an error of Lockstep, Hydra or OmegaConf. strategies: see `report_user_errors`."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        return _explain_missing_choice(error.missing_cfg_file, error.options, strategies)
    text = str(error)  # the patterns below are the messages of Hydra and OmegaConf
    if isinstance(error, OverrideParseException):
        remedy = "quote the value for Hydra too: 'key=\"value\"'" if "=" in str(error.override) else KEYS_HINT
        return f"{error.override}: not a key=value that Hydra can read ({first_line(text)}); {remedy}"
    if match := re.match(r"Ambiguous value for argument '(.+?)' *1\. To use it as a list", text, re.DOTALL):
        return f"{match[1].strip()}: has several values; add -m to train with each in turn"
    if match := re.match(r"Could not override '([^']+)'", text):
        return _explain_unknown_key(match[1])
    if match := re.match(r"UserError raised while resolving interpolation: (.*)", text):
        return match[1]
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return _explain_value(error, error.full_key)
    return one_line(text)


def _explain_missing_choice(config_file: str, options: Sequence[str], strategies: Sequence[str]) -> str:
    group, _, choice = config_file.rpartition("/")
    if group == "strategy":
        built_in = {path.stem for path in Path(CONF, "strategy").glob("*.yaml")}  # the strategies of both sides
        options = [*strategies, *(option for option in options if option not in built_in)]
    return f"{group}={choice}: no such choice; there are {', '.join(options)}"


def _explain_value(error: OmegaConfBaseException, key: str) -> str:
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        return _explain_unknown_key(key)
    reason = first_line(error.msg)
    if reason.startswith("Incompatible value 'None'"):
        reason = f"must not be null; give {key}=..."
    if "is not a ListConfig" in reason:
        reason = f"must be a list; give '{key}=[...,...]'"
    if "is not a subclass of" in reason:
        reason = f"has no value of its own; set one of its keys, {key}.KEY=VALUE; `--cfg job` lists them"
    if match := re.match(r"Cannot convert '(List|Dict)Config' to", reason):
        reason = f"must be one value, not a {'list' if match[1] == 'List' else 'section of keys'}"
    return f"{key}: {reason}"


def _explain_unknown_key(name: str) -> str:
    if name in ("data.transforms", "data.transform_evaluation"):
        return (
            f"{name}: no such key here; images, arrays, custom and lines have it. Sentence pairs have no transforms, "
            "because token_masking and span_corruption replace the labels, but the label of a pair is its class; for a "
            "function of your own, store the tokens of the pairs as data=arrays"
        )
    others = [key for key in collect_keys() if key != name]
    similar = get_close_matches(name, others, 1, 0.8) or [key for key in others if key.endswith(name)]
    return f"{name}: no such key here; " + (f"did you mean {similar[0]}? " if similar else "") + KEYS_HINT
