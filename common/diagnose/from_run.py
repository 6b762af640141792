"""Two finished runs as arguments of a diagnosis: the overrides that repeat each, and the checkpoint to start from.

A diagnosis trains both runs again for a few steps, from a checkpoint before the step at which they diverge.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from common.config.compose import CONF, collect_values, load_config
from common.config.keys import Value
from common.config.metrics import get_metric_name
from common.config.saved_config import CONFIG, read_values
from common.config.schedules import PlateauSettings
from common.config.schema import SECTIONS, Config, list_code, list_code_keys
from common.config.strategies import PACKAGES, ParameterServerSettings
from common.diagnose.overrides import quote_value
from common.errors import UserError
from common.recording.environment import UNKNOWN_DEVICE, read_environment
from common.records.summary import Summary, read_final_summary
from common.run.checkpoint import list_checkpoints, parse_step
from common.training.rows import Row, read_rows

# Config groups whose file is chosen by its kind, such as `kind: bert`, and whose other values are overridden
GROUPS = ("data", "task", "model", "optimizer", "schedule")
# Beginning of the override that sets an extension's strategy. A run's config does not name the strategy's YAML file.
EXTENSION_STRATEGY_PREFIX = "++strategy.kind="
# Beginnings of the keys that are not repeated: the diagnosis sets its own values, or does without them
OMITTED_KEYS = (
    *("train.precision", "train.log_every", "train.profile", "train.epochs", "train.early_stopping"),
    *("train.predictions", "train.evaluate_both"),
    *("train.checkpoint_every", "train.checkpoint_seconds", "train.checkpoint_gather_bytes"),
    *("train.keep_checkpoints", "train.max_restarts"),
    "optimizer.keras_layouts",  # the preparation of a run fills it in
)


def read_run_overrides(run_dir: Path, trusted: Collection[str] | None) -> tuple[str, list[str]]:
    """Return a run as `framework:strategy` and all other overrides.

    Args:
        run_dir: The run directory, which may be from somebody else.
        trusted: The code that the user's own command names, as KEY=VALUE. None trusts all code that the config names.

    Raises:
        UserError: The directory has no finished run, or the run's config names other code.
    """
    summary = read_final_summary(run_dir)
    if summary is None:
        raise UserError(
            f"{run_dir}: not a finished run; pass two run directories, two records of scripts, or a=... and b=..."
        )
    if summary["framework"] not in PACKAGES:  # becomes a part of an argument
        raise UserError(
            f"{run_dir}: its summary.json has the framework {summary['framework']}; a diagnosis repeats runs of "
            f"{' and '.join(PACKAGES)}"
        )
    if trusted is not None:
        check_code(run_dir, trusted)
    config = load_config(run_dir / CONFIG)
    config = replace(config, train=replace(config.train, device=_choose_device(config, summary)))
    choices = {group: find_choice(group, getattr(config, group).kind) for group in GROUPS}
    # Averages of the weights decide nothing that a diagnosis compares, unless the learning rate follows them.
    follows_averages = config.train.evaluate_average and isinstance(config.schedule, PlateauSettings)
    sections = SECTIONS if follows_averages else ("train",)
    omitted = OMITTED_KEYS if follows_averages else (*OMITTED_KEYS, "train.evaluate_average")
    prefixes = (*(f"{section}." for section in (*GROUPS, "strategy", *sections)), "extensions")
    values = {
        key: value
        for key, value in collect_values(config).items()
        if key.startswith(prefixes) and not key.endswith(".kind") and not key.startswith(omitted)
    }
    overrides = [f"{group}={choice}" for group, choice in choices.items()]
    if metric := _find_followed_metric(read_values(run_dir / CONFIG)):
        overrides.append(f"metrics={quote_value([metric])}")
    kind = config.strategy.kind
    is_extension = not Path(CONF, "strategy", f"{kind}.yaml").exists()
    if is_extension:
        overrides.append(f"{EXTENSION_STRATEGY_PREFIX}{kind}")
    for key, value in values.items():
        # Hydra needs ++ for keys that the chosen files do not have.
        is_new_key = isinstance(value, dict) or (is_extension and key.startswith("strategy."))
        overrides.append(f"{'++' if is_new_key else ''}{key}={quote_value(value)}")
    return f"{summary['framework']}:{kind}", overrides


def _find_followed_metric(values: Mapping[str, Value]) -> str | None:
    """Return the metric that decides the learning rate. A diagnosis ignores the other metrics.

    values: the sections of a run's config.
    """
    schedule, metrics, task = (values.get(name) for name in ("schedule", "metrics", "task"))
    if not isinstance(schedule, dict) or schedule.get("kind") != "plateau" or not isinstance(metrics, list):
        return None
    has_outputs = isinstance(task, dict) and task.get("kind") == "multi_output"
    followed = (key for key in map(str, metrics) if get_metric_name(key, has_outputs) == schedule.get("metric"))
    return next(followed, None)


def _choose_device(config: Config, summary: Summary) -> str:
    """Return the `train.device` with which a run is repeated: the CPU if it trained there, else this host's devices."""
    recorded = read_environment(summary)["device"]
    if isinstance(config.strategy, ParameterServerSettings):  # the coordinator records its own device, not the workers'
        recorded = UNKNOWN_DEVICE
    return "cpu" if "cpu" in (config.train.device, recorded) else "auto"


def check_code(run_dir: Path, trusted: Collection[str]) -> None:
    """Raise UserError if the config of a run names code that a repetition would run, except for the trusted code."""
    values = read_values(run_dir / CONFIG)
    named = [f"extensions={values['extensions']}"] if values.get("extensions") else []
    for name in list_code_keys():
        group, _, key = name.partition(".")
        section = values.get(group)
        if isinstance(section, dict) and list_code(section.get(key)):
            named.append(f"{name}={section[key]}")
    data = values.get("data")
    if isinstance(data, dict) and data.get("arguments"):  # what the function `data.read` gets, such as paths
        named.append(f"data.arguments={data['arguments']}")
    if (metric := _find_followed_metric(values)) and ":" in metric:
        named.append(f"metrics=[{metric}]")
    trusted = {normalize_code(override) for override in trusted}
    if unknown := [name for name in map(normalize_code, named) if name not in trusted]:
        raise UserError(
            f"{run_dir}: its config.yaml names code that would run here: {', '.join(unknown)}; if you trust it, pass "
            "trust=true, or the same keys"
        )


def normalize_code(override: str) -> str:
    """Return an override that names code without the notation of Hydra and of Python."""
    return re.sub(r"[\s'\"]", "", override.lstrip("+"))


def find_starting_point(a: Path, b: Path) -> tuple[Path, int] | None:
    """Return the newest checkpoint of either run before the first step at which they diverge, and that step.

    Two runs diverge at a step by the tolerances of `python -m common.compare`. The result is None if they never
    diverge, if neither run has such a checkpoint, if their optimizers are of different kinds and cannot share a
    checkpoint, or if a run is asynchronous, because its steps have no counterparts.
    """
    configs = [load_config(run / CONFIG) for run in (a, b)]
    if any(
        isinstance(config.strategy, ParameterServerSettings) and not config.strategy.synchronous for config in configs
    ):
        return None
    rows_a, rows_b = map(read_steps, (a, b))
    step_of_divergence = find_divergence(rows_a, rows_b, {config.train.precision for config in configs})
    if step_of_divergence is None or configs[0].optimizer.kind != configs[1].optimizer.kind:
        return None
    paths = {parse_step(path): path for run in (b, a) for path in list_checkpoints(run)}  # a's replaces b's
    checkpoints = {step: path for step, path in paths.items() if step < step_of_divergence}
    return (checkpoints[max(checkpoints)], step_of_divergence) if checkpoints else None


def read_steps(run_dir: Path) -> dict[int, Row]:
    """Return the rows of a run's metrics.jsonl by step. Raise UserError."""
    return {row["step"]: row for row in read_rows(run_dir / "metrics.jsonl")}


def find_divergence(rows_a: Mapping[int, Row], rows_b: Mapping[int, Row], precisions: Collection[str]) -> int | None:
    """Return the first step at which the losses or the gradient norms of two runs differ by more than the tolerance.

    Args:
        rows_a: The rows of a run by step.
        rows_b: The rows of the other run.
        precisions: The precisions of the runs. The precision with the largest tolerance decides.
    """
    tolerances = read_tolerances(precisions)
    for step in sorted(rows_a.keys() & rows_b.keys()):
        if not have_same_row(rows_a[step], rows_b[step], tolerances):
            return step
    return None


def read_tolerances(precisions: Collection[str]) -> tuple[float, float]:
    """Return the largest tolerances of `python -m common.compare`: (loss, gradient norm)."""
    settings = OmegaConf.load(Path(CONF, "compare.yaml")).tolerances
    loss, grad_norm = (max(settings[name][scalar] for name in precisions) for scalar in ("loss", "grad_norm"))
    return loss, grad_norm


def have_same_row(a: Mapping[str, float], b: Mapping[str, float], tolerances: tuple[float, float]) -> bool:
    """Check whether two rows of a step agree within the tolerances (loss, gradient norm)."""
    loss, grad_norm = tolerances
    allowed = grad_norm * max(a["grad_norm"], b["grad_norm"])
    # False for NaN
    return abs(a["loss"] - b["loss"]) <= loss and abs(a["grad_norm"] - b["grad_norm"]) <= allowed


def find_choice(group: str, kind: str) -> str:
    """Return the name of a file in conf/GROUP that has this kind, such as "adamw"."""
    for path in sorted(Path(CONF, group).glob("*.yaml")):
        if _read_kind(group, path) == kind:
            return path.stem
    raise UserError(f"{group}.kind={kind}: not in conf/{group}; pass a=... and b=... and the run's overrides")


def _read_kind(group: str, path: Path) -> str | None:
    """Return the kind that a file in conf/GROUP sets, or inherits from the file that it extends.

    A file that sets several groups has a section for each.
    """
    content = OmegaConf.load(path)
    assert isinstance(content, DictConfig)
    bases = (entry for entry in content.get("defaults", []) if isinstance(entry, str) and entry != "_self_")
    base = next(bases, None)
    section = content.get(group, content)
    if "kind" in section:
        return str(section.kind)
    return _read_kind(group, path.with_name(f"{base}.yaml")) if base else None
