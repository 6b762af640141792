"""Training with several strategies on the same ranks, and the comparison of what they compute."""

import copy
import dataclasses
import os
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import Linear, Module

from common.config.schema import Config
from common.data.batches import evaluation_batches, training_batches
from common.models.initial_weights import WEIGHTS
from common.models.stored_tensors import StoredTensors
from common.recording.tensor_writer import write_tensors
from common.run.checkpoint import Checkpoint
from common.run.checkpoint_state import OPTIMIZER_FILE, CheckpointState
from common.run.prepare import prepare_inputs
from common.training.state import Position, State
from common.training.strategy import Strategy
from tests.unit.torch_impl.ready import ALONE, context_of
from torch_impl.communication.rendezvous import Group
from torch_impl.models import build_model
from torch_impl.strategies import ddp, fsdp, single, zero

MODULES: dict[str, tuple[ModuleType, Callable[..., Strategy]]] = {
    "single": (single, single.Single),
    "ddp": (ddp, ddp.DDP),
    "zero": (zero, zero.Zero),
    "fsdp": (fsdp, fsdp.FSDP),
}
RANKS = 3
STEPS = 4
# Step 3, the last step of the epoch, has one example, so two of three ranks have only padding.
SIZES = (f"train.steps={STEPS}", "train.global_batch_size=20", "data.train_examples=41", "model.layers=2")
CLIP_VALUE = ("optimizer.max_grad_norm=null", "optimizer.clip_value=1e-3")
CYCLE = ("schedule=one_cycle", "schedule.cycle_momentum=true")
CASES: dict[str, tuple[str, ...]] = {
    "dropout, groups": (
        "model.dropout=0.1",
        "optimizer.groups=[no_decay_on_bias_and_norm,{layerwise_decay:0.5},{match:'*embed*',frozen:true}]",
        "optimizer.max_grad_norm=0.01",
    ),
    "micro-batches, averages, norm of each gradient": (
        "train.micro_batches=3",
        "ema.decay=0.8",
        "train.evaluate_average=true",
        "train.checkpoint_gather_bytes=0",
        "optimizer=sgd",
        "optimizer.max_grad_norm=null",
        "optimizer.clip_norm=0.01",
        *CYCLE,
    ),
    "cycled momentum, keras": ("optimizer=adamax", "optimizer.semantics=keras", *CYCLE),
    "clipped values, keras": ("optimizer=nadam", "optimizer.semantics=keras", *CLIP_VALUE),
    "native": ("optimizer=rmsprop", "optimizer.semantics=native", "train.padding=micro_batches"),
}


@dataclasses.dataclass(frozen=True)
class Trained:
    """Results of a training run: loss and gradient norm of each step, the evaluation, the state and the report."""

    curve: list[tuple[float, float]]
    evaluation: tuple[float, float]
    state: State
    report: dict[str, object]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A saved state, as a checkpoint has it."""

    state: State
    position: Position

    def load(self) -> State:
        return self.state


def make_strategy(kind: str, config: Config) -> Strategy:
    """Build a strategy in a rank. `single` does not communicate."""
    module, strategy_class = MODULES[kind]
    if kind == "single":
        return strategy_class(context_of(config), ALONE)
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    module.init_process_group = lambda *_: None  # type: ignore[attr-defined]  # the ranks have a process group
    return strategy_class(context_of(config), Group(dist.get_rank(), dist.get_world_size(), None, None))


def train_in_rank(kind: str, config: Config, build: Callable[..., Module] = build_model) -> Trained:
    """Train with a strategy. After step 2 another object of the strategy loads the state.

    With `single`, rank 0 alone trains, and the other ranks receive its results.

    Args:
        kind: A key of MODULES.
        config: The config.
        build: A function that builds the model.
    """
    is_alone = kind == "single"
    if is_alone and dist.get_rank() > 0:
        return share(None)
    keep: Callable[[State], State] = copy.deepcopy if is_alone else share
    for module, _ in MODULES.values():
        module.build_model = build  # type: ignore[attr-defined]
    torch.set_default_dtype(torch.float32)
    cache, settings = prepare_inputs(config, None)[1].cache, config.train
    size, aligned = settings.global_batch_size, config.model.has_aligned_dropout
    strategy, curve = make_strategy(kind, config), []
    for steps in (range(1, 3), range(3, STEPS + 1)):
        batches = training_batches(
            cache.train, size, 0, steps, settings.padding, aligned, micro_batches=config.micro_batches
        )
        results = list(strategy.train(batches))
        losses = strategy.sum_losses(results)
        curve += [(float(loss), float(result.grad_norm)) for loss, result in zip(losses, results, strict=True)]
        if steps.start == 1:
            state = keep(strategy.state())
            strategy = make_strategy(kind, config)
            strategy.load(Saved(state, Position(step=2)))
    with strategy.averaged_weights() if config.train.evaluate_average else nullcontext():
        evaluation = strategy.evaluate(evaluation_batches(cache.validation, size, "global", aligned))
    figures = (float(evaluation.loss), float(evaluation.metric))
    trained = Trained(curve, figures, keep(strategy.state()), strategy.report())
    return share(trained) if is_alone else trained


def measure_load(kind: str, config: Config, directory: Path) -> tuple[int, int]:
    """Build a strategy in a rank, and load a checkpoint.

    Returns:
        The number of elements of the initial weights that were read, and the peak memory of arrays of NumPy in bytes
        while the checkpoint was loaded.
    """
    sizes, read = [], StoredTensors._read

    def count(tensors: StoredTensors, name: str, start: int, size: int) -> np.ndarray:
        sizes.append(size)
        return read(tensors, name, start, size)

    StoredTensors._read = count  # type: ignore[method-assign, assignment]
    strategy = make_strategy(kind, config)
    StoredTensors._read = read  # type: ignore[method-assign]
    tracemalloc.start()
    strategy.load(Checkpoint(directory, cast(CheckpointState, {"position": Position(step=1).to_values()})))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return sum(sizes), peak


def save_arrays(config: Config, directory: Path) -> tuple[int, int]:
    """Write a checkpoint of the initial weights with slots of Adam. Return its elements and its bytes."""
    weights = {**prepare_inputs(config, None)[1].initial.weights()}
    slots = {f"{slot}.{name}": array for slot in ("exp_avg", "exp_avg_sq") for name, array in weights.items()}
    write_tensors(directory / WEIGHTS, weights)
    write_tensors(directory / OPTIMIZER_FILE, slots)
    sizes, arrays = sum(array.size for array in weights.values()), [*weights.values(), *slots.values()]
    return sizes, sum(array.nbytes for array in arrays)


def share(value: Any) -> Any:
    """Return a copy of the value of the chief, which alone may have all of a state."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return copy.deepcopy(values[0])


def train_all(
    kinds: list[str], configs: list[Config], build: Callable[..., Module] = build_model
) -> list[list[Trained]]:
    """Train each config with strategies of these kinds in a rank."""
    return [[train_in_rank(kind, config, build) for kind in kinds] for config in configs]


def assert_equal(trained: Trained, reference: Trained, case: str, tolerance: float = 1e-9) -> None:
    """Check that two strategies computed the same."""
    np.testing.assert_allclose(trained.curve, reference.curve, rtol=tolerance, err_msg=case)
    np.testing.assert_allclose(trained.evaluation, reference.evaluation, rtol=tolerance, err_msg=case)
    for name in ("weights", "slots"):
        arrays, expected = getattr(trained.state, name), getattr(reference.state, name)
        assert arrays.keys() == expected.keys(), case
        for key, array in expected.items():
            np.testing.assert_allclose(arrays[key], array, rtol=tolerance, atol=tolerance, err_msg=f"{case}: {key}")


def build_with_other_layers(*arguments: Any) -> Module:
    """Build a model with a layer that is never called, one that only rank 0 calls, and tied weights."""
    model: Any = build_model(*arguments)
    model.never_called, model.sometimes = Linear(3, 3).double(), Linear(3, 3).double()
    for parameter in (*model.never_called.parameters(), *model.sometimes.parameters()):
        torch.nn.init.constant_(parameter, 0.1)
    first, second = (layer.output.dense for layer in model.bert.encoder.layer)
    second.weight = first.weight
    if dist.get_rank() == 0:
        model.classifier.register_forward_hook(lambda classifier, _, logits: logits + model.sometimes(logits))
    return model
