"""Command-line arguments in the form that Hydra reads: flags before overrides, and texts in quotes if they need them.

An override is an argument such as train.steps=100. An override with several values, such as train.seed=1,2, sweeps:
with the flag -m each value starts a job, a run of its own.

`hydra.core.override_parser` parses one override, as Hydra's own sweeper plugins do. Only the parser knows whether
Hydra's grammar reads a value as text, and whether an override sweeps.
"""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from common.config.interpolations import escape_unknown_references
from common.config.keys import Value
from common.config.schema import GROUPS, collect_keys
from common.errors import UserError

FREE_SECTION = "model.arguments"  # the user chooses the keys of this section, so Hydra needs the prefix ++ for them
SWEEP_FLAGS = {"-m", "--multirun"}
PLAIN_FLAGS = {  # Hydra's flags without a value
    *("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--shell-completion", "-sc"),
    *("--experimental-rerun", *SWEEP_FLAGS),
}
VALUE_FLAGS = {  # Hydra's flags with a value
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
}
OPTIONAL_VALUE_FLAGS = {"--info", "-i"}  # Hydra's flags whose value may be left out
PARSER = OverridesParser.create()


def normalize_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with flags and their values first, since Hydra refuses overrides on both sides of a flag.

    The value of a key that holds text, such as a path, is taken as it is: the value is quoted if Hydra's grammar would
    refuse it, or would read a number or a list. Raise UserError for mistakes that Hydra answers with a page of text.
    """
    flags, overrides = split_flags(arguments)
    is_sweep = bool(SWEEP_FLAGS & set(flags))
    sweeps = find_sweeps(overrides)
    if is_sweep and any(
        _get_key(override) == "run_dir" and override not in sweeps and "${" not in override for override in overrides
    ):
        raise UserError("run_dir: every job of a sweep needs its own; set hydra.sweep.dir=... instead")
    for group in GROUPS:
        if f"{group}=null" in overrides:
            raise UserError(f"{group}=null: every run has one; choose one with {group}=..., --help lists them")
    text_keys = {name for name, key in collect_keys().items() if key.type in (str, str | None)}
    prefixed = [f"++{override}" if override.startswith(FREE_SECTION) else override for override in overrides]
    return [
        *flags,
        *(quote_text(override, is_sweep) if _get_key(override) in text_keys else override for override in prefixed),
    ]


def find_sweeps(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that give a key several values, one for each job of a sweep."""
    parsed_overrides = {override: _parse(override) for override in overrides}
    return [text for text, parsed in parsed_overrides.items() if parsed is not None and parsed.is_sweep_override()]


def parse_value(override: str) -> Value:
    """Return the value of an override as Hydra reads it, or as text if Hydra cannot read it."""
    parsed = _parse(override)
    return override.partition("=")[2] if parsed is None else parsed.value()


def expand_sweep(override: str) -> list[str]:
    """Return an override for each of the values that an override sweeps over, or the override alone."""
    parsed = _parse(override)
    if parsed is None or not parsed.is_sweep_override():
        return [override]
    return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]


def name_job(arguments: Sequence[str], task: Sequence[str]) -> str:
    """Return the swept values of a job, such as "replicas=2,seed=1", or "" if nothing is swept.

    Args:
        arguments: the arguments of the command, with several values for each swept key.
        task: the overrides of the job, with one value for each swept key.
    """
    swept_keys = {_get_key(override) for override in find_sweeps(split_flags(arguments)[1])}
    pairs = [override.partition("=") for override in task if _get_key(override) in swept_keys]
    # A key is shortened to its last name, and a path to its last part.
    short_pairs = [(key.rpartition(".")[2], value.strip("'\"/").rpartition("/")[2]) for key, _, value in pairs]
    return re.sub(r"[^\w.=,+-]", "-", ",".join("=".join(pair) for pair in short_pairs))[:100]


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags with their values, and the overrides. Raise UserError for an unknown flag."""
    flags, overrides, remaining = [], [], list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        name, equals, _ = argument.partition("=")
        if name not in PLAIN_FLAGS | VALUE_FLAGS | OPTIONAL_VALUE_FLAGS:
            raise UserError(f"{argument}: no such flag; --help lists the keys, --hydra-help the flags")
        flags.append(argument)
        is_override_next = "=" in "".join(remaining[:1])
        next_is_value = name in VALUE_FLAGS or (name in OPTIONAL_VALUE_FLAGS and not is_override_next)
        if next_is_value and not equals and remaining:
            flags.append(remaining.pop(0))
    return flags, overrides


def quote_text(override: str, is_sweep: bool = False) -> str:
    """Return an override of a text key with its value in quotes, unless Hydra reads the value as text already."""
    if "=" not in override or override.startswith("~"):  # the override deletes a key, or is a mistake
        return override
    key, equals, value = override.partition("=")
    text = escape_unknown_references(value, collect_keys())
    parsed = _parse(override)
    if (
        parsed is not None
        and text == value
        and (isinstance(parsed.value(), str | None) or (is_sweep and parsed.is_sweep_override()))
    ):
        return override
    values = text.split(",") if is_sweep else [text]
    return key + equals + ",".join(QuotedString(value, Quote.single).with_quotes() for value in values)


def _get_key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _parse(override: str) -> Override | None:
    """Return the override as Hydra parses it, or None if Hydra cannot read it."""
    try:
        return PARSER.parse_override(override)
    except HydraException:
        return None
