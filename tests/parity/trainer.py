"""Training of a list of runs: python -m tests.parity.trainer torch|tf RUNS.json, or ranks RUNS.json WORLD_SIZE

RUNS.json is a list of {"run_dir", "overrides", "fault"}. A fault is planted only for its run. The runs are trained one
after the other, in one process of one framework or in one group of PyTorch ranks, because starting processes takes
longer than training. Parameter servers and TensorFlow's clusters start their own processes, as the command does.
"""

import atexit
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict
from unittest.mock import patch

import numpy as np

from common.cluster.discovery import discover_cluster
from common.cluster.network import find_loopback_interface
from common.cluster.processes import die_with_parent
from common.cluster.supervisor import Process, supervise
from common.cluster.topology import HostGroup
from common.config.compose import parse_config
from common.data import batch_plan
from common.data.dropout import derive_example_keys
from common.map.side import Side
from common.models import custom
from common.models.initial_weights import InitialCheckpoint
from common.run.context import RunContext, open_context
from common.run.prepare import open_run
from common.run.worker import SideRuntime, train_rank
from common.run_module import module_command
from common.training.loop import Loop
from common.training.strategy import load_strategy_class
from tests.composition import compose_quickly


class PlannedRun(TypedDict):
    """An entry of RUNS.json."""

    run_dir: str
    overrides: list[str]
    fault: str | None


def train_runs(framework: str, runs: list[PlannedRun]) -> None:
    """Train the runs in this process."""
    with share_sides():
        for run, context in zip(runs, prepare_runs(framework, runs), strict=True):
            with plant_fault(run["fault"]):
                assert train(context) == 0, run


def prepare_runs(framework: str, runs: list[PlannedRun]) -> Iterator[RunContext]:
    """Yield the contexts of the runs. Each run is prepared just before it is trained, and closed after that."""
    for run in runs:
        config = parse_config(compose_quickly(*run["overrides"], f"run_dir={run['run_dir']}"))
        config, _ = discover_cluster(config, framework, {})
        with open_run(config, framework) as context:
            yield context


@contextmanager
def share_sides() -> Iterator[None]:
    """Describe the model pairs of all runs in one process of each framework: each would import it again."""
    sides: dict[str, Side] = {}
    with ExitStack() as stack:

        def open_side(package: str, device: str) -> nullcontext[Side]:
            if package not in sides:
                sides[package] = stack.enter_context(Side(package, device=device))
            return nullcontext(sides[package])

        with patch.object(custom, "Side", open_side):
            yield


def train(context: RunContext) -> int:
    """Train as the command does after its preparation, but in this process if the strategy needs only one."""
    launch = importlib.import_module(f"{context.framework}_impl.launch")
    if not context.config.strategy.one_process:
        return int(launch.launch(context, HostGroup()))
    if context.framework == "tf":
        from tf_impl.device import select_replica_devices

        select_replica_devices(4)  # a process creates its devices once: enough for every run
    return train_here(context)


def train_here(context: RunContext) -> int:
    """Train in this process."""
    config, framework = context.config, context.framework
    rendezvous = importlib.import_module(f"{framework}_impl.communication.rendezvous")
    strategy_class = load_strategy_class(config, framework)
    profile = importlib.import_module(f"{framework}_impl.profiling").profile
    report_compilations = importlib.import_module(f"{framework}_impl.compilation").report_compilations
    describe_environment = importlib.import_module(f"{framework}_impl.device").describe_environment
    runtime = SideRuntime(rendezvous.join_group, strategy_class, profile, report_compilations, describe_environment)
    return train_rank(context, runtime)


def train_with_ranks(runs: list[PlannedRun], spec: str, world_size: int) -> None:
    """Train all runs with one group of ranks."""
    with share_sides():
        for _ in prepare_runs("torch", runs):
            pass
    command = module_command("tests.parity.trainer", "rank", spec, str(world_size))
    processes = [Process(f"rank {rank}", [*command, str(rank)], {"OMP_NUM_THREADS": "1"}) for rank in range(world_size)]
    outcome = supervise(processes, Path(spec).with_suffix(".ranks.log"))
    assert outcome.exit_code == 0, outcome.problem


def train_as_rank(runs: list[PlannedRun], world_size: int, rank: int) -> None:
    """Train all runs as one rank of a group."""
    import torch._dynamo as dynamo
    import torch.distributed as dist

    die_with_parent()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": find_loopback_interface()}
    for run in runs:
        os.environ["LOCKSTEP_RENDEZVOUS"] = f"{run['run_dir']}.rendezvous"
        assert train_here(open_context(Path(run["run_dir"]), "torch", is_chief=rank == 0)) == 0, run
        dynamo.reset()  # the number of graphs for one function is limited, and all models use the same functions
        dist.destroy_process_group()
        atexit.unregister(dist.destroy_process_group)


@contextmanager
def plant_fault(fault: str | None) -> Iterator[None]:
    """Plant a fault that the parity tests must see. Native Adam and native dropout are config keys instead."""
    if fault == "tanh_gelu":
        with _change_checkpoint_config(hidden_act="gelu_new"):
            yield
    elif fault == "layer_norm_epsilon":
        with _change_checkpoint_config(layer_norm_eps=1e-6):
            yield
    elif fault == "other_shuffle":
        correct = batch_plan.select_example_ids
        with patch(
            "common.data.batch_plan.select_example_ids",
            lambda count, size, seed, step, stream_block: correct(count, size, seed + 1, step, stream_block),
        ):
            yield
    elif fault == "other_shuffle_of_later_blocks":
        with _shuffle_later_blocks():
            yield
    elif fault == "mean_of_replica_means":
        with _average_replica_means():
            yield
    elif fault == "no_attention_mask":
        with _attend_to_padding():
            yield
    elif fault == "flatten_order":
        with _flatten_in_keras_order():
            yield
    elif fault == "masks_by_place":
        with patch(
            "common.data.batches.derive_example_keys",
            lambda seed, step, ids: derive_example_keys(seed, step, np.arange(len(ids))),
        ):
            yield
    elif fault == "average_evaluated_twice":
        correct_evaluation = Loop._evaluate_weights
        with patch.object(Loop, "_evaluate_weights", lambda self, averaged: correct_evaluation(self, True)):
            yield
    else:
        assert fault in (None, "native_adam", "native_dropout")
        yield


@contextmanager
def _change_checkpoint_config(**changes: str | float) -> Iterator[None]:
    """Change values of the config.json of every initial checkpoint."""
    correct: Callable[[InitialCheckpoint], dict[str, Any]] = vars(InitialCheckpoint)["hf_config"].fget

    def change_config(self: InitialCheckpoint) -> dict[str, Any]:
        return {**correct(self), **changes}

    with patch.object(InitialCheckpoint, "hf_config", property(change_config)):
        yield


@contextmanager
def _shuffle_later_blocks() -> Iterator[None]:
    """Shuffle all blocks of a stream but the first with another seed."""
    correct = batch_plan._permute_stream

    def permute_stream(count: int, seed: int, epoch: int, positions: np.ndarray, block_size: int) -> np.ndarray:
        first, later = (correct(count, seed + offset, epoch, positions, block_size) for offset in (0, 1))
        return np.where(positions < block_size, first, later)

    with patch.object(batch_plan, "_permute_stream", permute_stream):
        yield


@contextmanager
def _average_replica_means() -> Iterator[None]:
    """Divide the loss of a shard by its number of rows and by the number of shards."""
    import tensorflow as tf

    from tf_impl.strategies import mirrored

    correct = mirrored.backward

    def backward(model: Any, task: Any, shard: list[dict[str, tf.Tensor]], weight: tf.Tensor, parameters: Any) -> Any:
        rows = tf.add_n([tf.shape(part["labels"])[0] for part in shard])
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return correct(model, task, shard, rows * replicas, parameters)

    with patch.object(mirrored, "backward", backward):
        yield


@contextmanager
def _attend_to_padding() -> Iterator[None]:
    """Ignore the mask of attention, which is the only computation with padding."""
    import tensorflow as tf

    from tf_impl.models import bert

    correct = bert._compute_attention

    def compute_attention(
        layer: Any, apply: Any, x: tf.Tensor, mask: tf.Tensor, places: tf.Tensor, seed: tf.Tensor | None, keys: Any
    ) -> tf.Tensor:
        return correct(layer, apply, x, tf.ones_like(mask), places, seed, keys)

    with patch.object(bert, "_compute_attention", compute_attention):
        yield


@contextmanager
def _flatten_in_keras_order() -> Iterator[None]:
    """Treat the kernel of fc1 as that of any linear layer, although Keras flattens (height, width, channels)."""
    from tf_impl.models import convnet

    def build(initial: InitialCheckpoint) -> Any:
        model = correct(initial)
        parameters = model.named_parameters
        model.named_parameters = [replace(item, kernel=item.kernel and item.shape) for item in parameters]
        return model

    correct = convnet.build
    with patch.object(convnet, "build", build):
        yield


if __name__ == "__main__":
    kind, spec, *numbers = sys.argv[1:]
    runs = json.loads(Path(spec).read_text())
    if kind == "ranks":
        train_with_ranks(runs, spec, int(numbers[0]))
    elif kind == "rank":
        train_as_rank(runs, int(numbers[0]), int(numbers[1]))
    else:
        train_runs(kind, runs)
