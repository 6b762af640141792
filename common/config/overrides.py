"""Command-line arguments as Hydra can read them: flags before overrides, and texts in quotes where they need them."""

import re
from collections.abc import Sequence

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from common.config.schema import GROUPS, collect_keys
from common.errors import UserError

FREE = "model.arguments"  # below it the keys are the user's
MULTIRUN = {"-m", "--multirun"}
PARSER = OverridesParser.create()


def normalize_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments with flags and their values first, since Hydra refuses overrides on both sides of a flag.

    The value of a key that holds text, such as a path, is taken as it stands: it is quoted where Hydra's grammar would
    refuse it or would read a number or a list. Raises UserError for what Hydra answers with a page of text.
    """
    flags, overrides = split_flags(arguments)
    sweep = bool(MULTIRUN & set(flags))
    varied = find_swept(overrides)
    if sweep and any(_key(each) == "run_dir" and each not in varied and "${" not in each for each in overrides):
        raise UserError("run_dir: every job of a sweep has a directory of its own; give hydra.sweep.dir=... instead")
    for group in GROUPS:
        if f"{group}=null" in overrides:
            raise UserError(f"{group}=null: every run has one; choose one with {group}=..., --help lists them")
    texts = {name for name, key in collect_keys().items() if key.type in (str, str | None)}
    added = [f"++{each}" if each.startswith(FREE) else each for each in overrides]
    return [*flags, *(_quoted(each, sweep) if _key(each) in texts else each for each in added)]


def find_swept(overrides: Sequence[str]) -> list[str]:
    """Those that give a key several values, one for each job of a sweep."""
    parsed = {each: _parsed(each) for each in overrides}
    return [each for each, override in parsed.items() if override is not None and override.is_sweep_override()]


def expand_sweep(override: str) -> list[str]:
    """The override for each of its values: only itself, where it has one."""
    parsed = _parsed(override)
    if parsed is None or not parsed.is_sweep_override():
        return [override]
    return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]


def name_job(arguments: Sequence[str], task: Sequence[str]) -> str:
    """What distinguishes a job of a sweep: "replicas=2,seed=1". Empty where nothing is swept.

    task: the overrides of this job.
    """
    keys = {_key(each) for each in find_swept(split_flags(arguments)[1])}
    pairs = [each.partition("=") for each in task if _key(each) in keys]
    shown = [(key.rpartition(".")[2], value.strip("'\"/").rpartition("/")[2]) for key, _, value in pairs]
    return re.sub(r"[^\w.=,+-]", "-", ",".join("=".join(pair) for pair in shown))[:100]


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags with their values, and overrides."""
    actions = {name: action for action in get_args_parser()._actions for name in action.option_strings}
    flags, overrides, rest = [], [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        name, equals, _ = argument.partition("=")
        if name not in actions:
            raise UserError(f"{argument}: no such flag; --help lists the keys, --hydra-help the flags")
        flags.append(argument)
        optional = actions[name].nargs == "?"  # of --info alone
        if actions[name].nargs != 0 and not equals and rest and not (optional and "=" in rest[0]):
            flags.append(rest.pop(0))
    return flags, overrides


def _quoted(override: str, sweep: bool) -> str:
    if "=" not in override or override.startswith("~"):  # it deletes a key, or is a mistake
        return override
    parsed = _parsed(override)
    if parsed is not None and (isinstance(parsed.value(), str | None) or (sweep and parsed.is_sweep_override())):
        return override
    key, equals, value = override.partition("=")
    values = value.split(",") if sweep else [value]
    return key + equals + ",".join(QuotedString(value, Quote.single).with_quotes() for value in values)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _parsed(override: str) -> Override | None:
    try:
        return PARSER.parse_override(override)
    except HydraException:
        return None
