"""The overrides that train a finished run's experiment again, and where two of them came apart."""

import json
from collections.abc import Collection
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from common.config.compose import CONF, collect_values, load_config
from common.config.strategies import ParameterServerSettings
from common.errors import UserError
from common.run.checkpoint import list_checkpoints, parse_step
from common.training.rows import read_rows

GROUPS = ("data", "task", "model", "optimizer", "schedule")
OF_EXTENSION = "++strategy.kind="  # of a run's strategy whose YAML file is an extension's: the run does not say where
LEFT_OUT = (
    *("train.precision", "train.log_every", "train.profile", "train.epochs", "train.early_stopping"),
    *("train.checkpoint_every", "train.checkpoint_seconds", "train.keep_checkpoints", "train.max_restarts"),
)


def arguments_of(run_dir: Path) -> tuple[str, list[str]]:
    """`framework:strategy`, and the overrides but for the strategy's name. Raises UserError where it is no run."""
    try:
        framework = json.loads((run_dir / "summary.json").read_text())["framework"]
        config = load_config(run_dir / "config.yaml")
    except (OSError, JSONDecodeError, KeyError) as error:
        raise UserError(f"{run_dir}: not a finished run; give two run directories, or a=... and b=...") from error
    groups = {name: _choice(name, getattr(config, name).kind) for name in GROUPS}
    values = {
        name: value
        for name, value in collect_values(config).items()
        if name.startswith((*(f"{group}." for group in GROUPS), "strategy.", "train.", "cache_dir", "extensions"))
        and not name.endswith(".kind")
        and not name.startswith(LEFT_OUT)
    }
    overrides = [f"{name}={choice}" for name, choice in groups.items()]
    kind = config.strategy.kind
    of_extension = not Path(CONF, "strategy", f"{kind}.yaml").exists()
    if of_extension:
        overrides.append(f"{OF_EXTENSION}{kind}")
    for name, value in values.items():
        added = isinstance(value, dict) or (of_extension and name.startswith("strategy."))
        overrides.append(f"{'++' if added else ''}{name}={quoted(value)}")
    return f"{framework}:{kind}", overrides


def starting_point(a: Path, b: Path) -> tuple[Path, int] | None:
    """The newest checkpoint of two runs before the first step at which they are apart, and that step.

    Apart is what `python -m common.compare` calls diverged. None where they never are, where neither has such a
    checkpoint or the other could not go on from it, and for asynchronous runs, whose steps have no counterparts.
    """
    configs = [load_config(run / "config.yaml") for run in (a, b)]
    if any(isinstance(each.strategy, ParameterServerSettings) and not each.strategy.synchronous for each in configs):
        return None
    apart = _first_apart(a, b, {each.train.precision for each in configs})
    if apart is None or configs[0].optimizer.kind != configs[1].optimizer.kind:
        return None
    before = {
        step: path for run in (b, a) for path in list_checkpoints(run) if (step := parse_step(path)) < apart
    }  # rather A's
    return (before[max(before)], apart) if before else None


def _first_apart(a: Path, b: Path, precisions: Collection[str]) -> int | None:
    tolerances = [OmegaConf.load(Path(CONF, "compare.yaml")).tolerances[each] for each in precisions]
    loss, norm = (max(each[name] for each in tolerances) for name in ("loss", "grad_norm"))
    rows = [{row["step"]: row for row in read_rows(run / "metrics.jsonl")} for run in (a, b)]
    for step in sorted(rows[0].keys() & rows[1].keys()):
        x, y = rows[0][step], rows[1][step]
        largest = max(x["grad_norm"], y["grad_norm"])
        if not (abs(x["loss"] - y["loss"]) <= loss and abs(x["grad_norm"] - y["grad_norm"]) <= norm * largest):
            return int(step)
    return None


def _choice(group: str, kind: str) -> str:
    """A file of conf/ with this kind; its values are overridden."""
    for path in sorted(Path(CONF, group).glob("*.yaml")):
        if _kind(group, path) == kind:
            return path.stem
    raise UserError(
        f"{group}.kind={kind}: no file in conf/{group} has it; give a=... and b=... and the run's overrides"
    )


def _kind(group: str, path: Path) -> str | None:
    """Of a file, or of the one that it starts from. A file for all groups has a section for its own."""
    found = OmegaConf.load(path)
    assert isinstance(found, DictConfig)
    base = next((each for each in found.get("defaults", []) if isinstance(each, str) and each != "_self_"), None)
    found = found.get(group, found)
    if "kind" in found:
        return str(found.kind)
    return _kind(group, path.with_name(f"{base}.yaml")) if base else None


def quoted(value: Any) -> str:
    """A value as Hydra reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{quoted(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(quoted, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return repr(value)
