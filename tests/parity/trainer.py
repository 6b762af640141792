"""Trains a list of runs: python -m tests.parity.trainer torch|tf RUNS.json, or ranks RUNS.json WORLD_SIZE

RUNS.json is a list of {"run_dir", "overrides", "fault"}; a fault is planted for that run alone. The runs are made one
after the other, in one process of one framework, or by one group of PyTorch ranks: starting costs more than training.
Strategies with servers, and TensorFlow's clusters, start their own processes, as the command does.
"""

import atexit
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hydra import compose, initialize_config_dir

from common.cluster.discovery import discover_cluster
from common.cluster.network import find_loopback_interface
from common.cluster.processes import die_with_parent
from common.cluster.supervisor import Process, supervise
from common.cluster.topology import HostGroup
from common.config.compose import CONF, parse_config
from common.data import batch_plan
from common.data.dropout import derive_example_keys
from common.models.initial_weights import InitialCheckpoint
from common.run.context import RunContext, open_context
from common.run.prepare import open_run
from common.run.worker import SideRuntime, train_rank
from common.run_module import module_command
from common.training.strategy import load_strategy_class


def main(framework: str, runs: list[dict[str, Any]]) -> None:
    for item, context in zip(runs, prepared(framework, runs), strict=True):
        with planted(item["fault"], framework):
            assert train(context) == 0, item


def prepared(framework: str, runs: list[dict[str, Any]]) -> Iterator[RunContext]:
    """The contexts of the runs; a run is prepared just before it is trained."""
    with initialize_config_dir(CONF, version_base="1.3"):
        configs = [parse_config(compose("train", [*item["overrides"], f"run_dir={item['run_dir']}"])) for item in runs]
    for config in configs:
        config, _ = discover_cluster(config, framework, {})
        with open_run(config, framework) as context:
            pass
        yield context


def train(context: RunContext) -> int:
    """What the command does after it has prepared, but in this process where one process is all it takes."""
    launch = importlib.import_module(f"{context.framework}_impl.launch")
    if not context.config.strategy.one_process:
        return int(launch.launch(context, HostGroup()))
    if context.framework == "tf":
        from tf_impl.device import select_replica_devices

        select_replica_devices(4)  # TensorFlow's devices are made once in a process: enough for every run
    return train_here(context)


def train_here(context: RunContext) -> int:
    """Train in this process."""
    config, framework = context.config, context.framework
    rendezvous = importlib.import_module(f"{framework}_impl.communication.rendezvous")
    strategy = load_strategy_class(config, framework)
    profile = importlib.import_module(f"{framework}_impl.profiling").profile
    report_compilations = importlib.import_module(f"{framework}_impl.compilation").report_compilations
    return train_rank(context, SideRuntime(rendezvous.join_group, strategy, profile, report_compilations))


def train_with_ranks(runs: list[dict[str, Any]], spec: str, world_size: int) -> None:
    """One group of ranks makes all the runs."""
    for _ in prepared("torch", runs):
        pass
    command = module_command("tests.parity.trainer", "rank", spec, str(world_size))
    processes = [Process(f"rank {rank}", [*command, str(rank)], {"OMP_NUM_THREADS": "1"}) for rank in range(world_size)]
    outcome = supervise(processes, Path(spec).with_suffix(".ranks.log"))
    assert outcome.exit_code == 0, outcome.problem


def be_rank(runs: list[dict[str, Any]], world_size: int, rank: int) -> None:
    """One rank of a group that makes all the runs."""
    import torch._dynamo as dynamo
    import torch.distributed as dist

    die_with_parent()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": find_loopback_interface()}
    for item in runs:
        os.environ["LOCKSTEP_RENDEZVOUS"] = f"{item['run_dir']}.rendezvous"
        assert train_here(open_context(Path(item["run_dir"]), "torch", is_chief=rank == 0)) == 0, item
        dynamo.reset()  # it compiles only so many graphs of one function, and models share theirs
        dist.destroy_process_group()
        atexit.unregister(dist.destroy_process_group)


@contextmanager
def planted(fault: str | None, framework: str) -> Iterator[None]:
    """Put in one of the mistakes that the parity tests must see (native Adam and dropout are config keys)."""
    if fault == "tanh_gelu":
        with _changed_checkpoint_config(hidden_act="gelu_new"):
            yield
    elif fault == "layer_norm_epsilon":
        with _changed_checkpoint_config(layer_norm_eps=1e-6):
            yield
    elif fault == "other_shuffle":
        correct = batch_plan.select_example_ids
        with patch(
            "common.data.batch_plan.select_example_ids",
            lambda count, size, seed, step: correct(count, size, seed + 1, step),
        ):
            yield
    elif fault == "mean_of_replica_means":
        with _mean_of_replica_means():
            yield
    elif fault == "no_attention_mask":
        with _attention_to_padding():
            yield
    elif fault == "flatten_order":
        with _flattened_in_keras_order():
            yield
    elif fault == "masks_by_place":
        with patch(
            "common.data.batches.derive_example_keys",
            lambda seed, step, ids: derive_example_keys(seed, step, np.arange(len(ids))),
        ):
            yield
    else:
        assert fault in (None, "native_adam", "native_dropout")
        yield


@contextmanager
def _changed_checkpoint_config(**changes: Any) -> Iterator[None]:
    correct: Callable[[InitialCheckpoint], dict[str, Any]] = vars(InitialCheckpoint)["hf_config"].fget

    def wrong(self: InitialCheckpoint) -> dict[str, Any]:
        return {**correct(self), **changes}

    with patch.object(InitialCheckpoint, "hf_config", property(wrong)):
        yield


@contextmanager
def _mean_of_replica_means() -> Iterator[None]:
    import tensorflow as tf

    from tf_impl.strategies import mirrored

    correct = mirrored.backward

    def wrong(model: Any, task: Any, shard: list[dict[str, tf.Tensor]], weight: tf.Tensor, parameters: Any) -> Any:
        """Divided by the rows of the shard and the number of shards, and summed over these."""
        rows = tf.add_n([tf.shape(part["labels"])[0] for part in shard])
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return correct(model, task, shard, rows * replicas, parameters)

    with patch.object(mirrored, "backward", wrong):
        yield


@contextmanager
def _attention_to_padding() -> Iterator[None]:
    """The only place where unpadded computing has padding."""
    import tensorflow as tf

    from tf_impl.models import bert

    correct = bert._compute_attention

    def wrong(layer: Any, x: tf.Tensor, mask: tf.Tensor, *rest: Any) -> tf.Tensor:
        return correct(layer, x, tf.ones_like(mask), *rest)

    with patch.object(bert, "_compute_attention", wrong):
        yield


@contextmanager
def _flattened_in_keras_order() -> Iterator[None]:
    """fc1's kernel as another linear layer's, though Keras flattens (height, width, channels)."""
    from tf_impl.models import convnet

    def build(initial: InitialCheckpoint) -> Any:
        made = correct(initial)
        made.named_parameters = [replace(each, kernel=each.kernel and each.shape) for each in made.named_parameters]
        return made

    correct = convnet.build
    with patch.object(convnet, "build", build):
        yield


if __name__ == "__main__":
    kind, spec, *numbers = sys.argv[1:]
    runs = json.loads(Path(spec).read_text())
    if kind == "ranks":
        train_with_ranks(runs, spec, int(numbers[0]))
    elif kind == "rank":
        be_rank(runs, int(numbers[0]), int(numbers[1]))
    else:
        main(kind, runs)
