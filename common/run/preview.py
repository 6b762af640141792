"""Preview of a run for the flag --plan: the inputs are prepared, and nothing is trained."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from common.config.data import TransformedSettings
from common.config.layout_optimizers import MuonSettings
from common.config.parameter_groups import GroupSettings, assign_groups, find_overlaps
from common.config.schema import Config
from common.config.transforms import parse_transforms
from common.data.batch_plan import compute_shard_bounds, count_examples_until
from common.models.spec import count_parameters, get_trained_shapes
from common.run.curve_settings import check_native_slots
from common.run.directory import choose_run_dir
from common.run.prepare import prepare_inputs
from common.training.schedule import find_highest_rate


def describe_plan(config: Config, framework: str) -> str:
    """Return a table of the data, the steps and the directories of a run. Raise UserError as training would."""
    config, inputs = prepare_inputs(config, Path(config.run_dir).expanduser() if config.run_dir else None)
    if inputs.checkpoint is not None:
        check_native_slots(config, framework, inputs.checkpoint)
    train, schedule, strategy, cache = config.train, config.schedule, config.strategy, inputs.cache
    examples, steps = len(cache.train), train.steps
    classes = cache.classes if len(cache.train.labels) == examples else []  # a stream has the labels of its first block
    batch = min(train.global_batch_size, examples)
    trained = count_examples_until(examples, train.global_batch_size, steps)
    # A shard is one replica's part of a global batch. The sizes of the shards differ by at most one example.
    shard_sizes = np.unique(np.diff(compute_shard_bounds(batch, strategy.world_size)))[::-1]
    processes = ", ".join(f"{count} {role}" for role, count in strategy.roles.items())
    peak = find_highest_rate(config)
    shapes = get_trained_shapes(config.model, inputs.initial.hf_config)
    parameters = count_parameters(config.model, inputs.initial.hf_config)
    start = inputs.checkpoint.directory if inputs.checkpoint else "the initial weights"
    lines = {
        "strategy": f"{framework} {strategy.kind} x{strategy.world_size} (processes: {processes})",
        "model": f"{config.model.name}, {parameters:,} parameters",
        "data": f"{config.data.kind}: {cache}",
        **{f"class {name}": count for name, count in _count_classes(cache.train.labels, classes).items()},
        **_describe_transforms(config),
        "steps": f"{steps:,} of {batch:,} examples: {trained:,} examples, {trained / examples:.2f} epochs",
        **({"updates": f"{steps * strategy.updates_per_batch:,}"} if strategy.updates_per_batch > 1 else {}),
        "shards": f"{' or '.join(map(str, shard_sizes))} examples of a step for each replica",
        "learning rate": f"{schedule.kind}, at most {peak:g}; {schedule.warmup_steps} steps of warm-up",
        **_describe_groups(config, shapes),
        **_describe_matrices(config, shapes),
        "evaluations": _format_every(train.eval_every, train.virtual_epoch_examples),
        "checkpoints": _format_every(train.checkpoint_every, train.virtual_epoch_examples, train.checkpoint_seconds),
        "starts from": f"{start}, step {inputs.start.step}",
        "would write": config.run_dir or choose_run_dir(config, framework, "<time>"),
        "cache": cache.directory,
        "initial weights": inputs.initial.directory,
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines.items())


def _describe_transforms(config: Config) -> dict[str, str]:
    """Return a line with the transforms, and whether evaluations use all of them; no line without transforms."""
    data = config.data
    if not isinstance(data, TransformedSettings) or not data.transforms:
        return {}
    names = [
        f"{name} {arguments}" if arguments != {} else name for name, arguments in parse_transforms(data.transforms)
    ]
    scope = "training and evaluation" if data.transform_evaluation else "training; evaluations leave out random ones"
    return {"transforms": f"{', '.join(names)} ({scope})"}


def _describe_groups(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return a line for each parameter group, with its size and settings, and for each pair that overlaps."""
    settings = config.optimizer
    sizes: dict[GroupSettings, list[int]] = {}
    for name, group in assign_groups(settings.groups, settings.weight_decay, shapes).items():
        sizes.setdefault(group, []).append(math.prod(shapes[name]))
    if len(sizes) == 1:
        return {}
    lines = {
        f"group {number}": f"{len(counts)} parameters of {sum(counts):,} values: {_describe_group(group)}"
        for number, (group, counts) in enumerate(sizes.items(), 1)
    }
    overlaps = find_overlaps(settings.groups, shapes)
    return lines | {f"overlap {number}": overlap for number, overlap in enumerate(overlaps, 1)}


def _describe_group(group: GroupSettings) -> str:
    if group.frozen:
        return "frozen"
    return f"weight decay {group.weight_decay:g}, learning rate x {group.learning_rate_scale:g}"


def _describe_matrices(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return a line with the parameters that Muon updates; none for other optimizers."""
    settings = config.optimizer
    if not isinstance(settings, MuonSettings):
        return {}
    sizes = [
        math.prod(shape) for name, shape in shapes.items() if "momentum_buffer" in settings.list_slots(name, shape)
    ]
    others = len(shapes) - len(sizes)
    return {"muon": f"{len(sizes)} matrices of {sum(sizes):,} values; AdamW updates the other {others} parameters"}


def _count_classes(labels: np.ndarray, classes: list[str]) -> dict[str, str]:
    """Return a line with the number of training examples of each class; only the first and last 10 of many classes."""
    if not classes:
        return {}
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    lines = {name: f"{count:,} training examples" for name, count in zip(classes, counts, strict=True)}
    return lines if len(lines) <= 20 else dict([*list(lines.items())[:10], *list(lines.items())[-10:]])


def _format_every(steps: int | None, epoch: int | None, seconds: float | None = None) -> str:
    """Describe the times at which a run evaluates or saves.

    Args:
        steps: number of steps between two times.
        epoch: number of examples between two times, in place of `steps`.
        seconds: number of seconds between two times.
    """
    intervals = {
        "every {:,} steps": steps if epoch is None else None,
        "after every {:,} examples": epoch,
        "every {:g} s": seconds,
    }
    descriptions = [text.format(number) for text, number in intervals.items() if number is not None]
    return ", ".join([*descriptions, "and at the end"]) if descriptions else "at the end"
