"""Program that trains with every strategy on the CPU and on a simulated device, and prints how they differ as JSON.

python -m tests.unit.torch_impl.train_on_simulated_device DIRECTORY
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
import torch.distributed as dist

from common.config.compose import parse_config
from common.map.side import Side
from common.models import custom
from common.run.context import RunContext
from common.run.prepare import prepare_run
from common.training.planned_batches import planned_batches, validation_batches
from common.training.state import Position, State
from tests.composition import compose_quickly
from tests.conftest import SMALL_CORPUS, SMALL_IMAGES
from tests.unit.reference_losses import CLASSIFICATION
from tests.unit.torch_impl.ready import ALONE, make_ready
from tests.unit.torch_impl.simulated_device import DEVICE, SimulatedDevice, SimulatedTensor
from tests.unit.torch_impl.synchronizations import SynchronizationFinder
from torch_impl import dropout, observed_model
from torch_impl.strategies import allreduce, ddp, dp, single
from torch_impl.strategies.parameter_server import shards, worker
from torch_impl.strategies.parameter_server.messages import (
    AppliedUpdate,
    ApplyGradient,
    ComputeGradient,
    ParametersVersion,
)
from torch_impl.task import build_task_functions

DIRECTORY = Path(sys.argv[1])
CPU = torch.device("cpu")
STEPS = range(1, 3)
STRATEGIES: dict[str, tuple[Any, Any]] = {
    "single": (single, single.Single),
    "dp": (dp, dp.DP),
    "ddp": (ddp, ddp.DDP),
    "allreduce": (allreduce, allreduce.AllReduce),
}
BATCH_NORM = ["model.sync_batch_norm=true"]


def list_example(name: str, kind: str, files: str, *overrides: str) -> list[str]:
    """Return the overrides that train the PyTorch model of an example."""
    data = DIRECTORY / files
    if not data.exists():
        import_module(f"examples.{files}.data").write(data)
    suffix = "txt" if kind == "lines" else "npz"
    paths = [f"data.{split}={data}/{split}.{suffix}" for split in ("train", "validation")]
    model = ["model=custom", f"++model.torch=examples.{name}.model_torch:build"]
    return [*model, f"data={kind}", *paths, *overrides]


MODELS = {
    "bert": [*SMALL_CORPUS, "model=bert_tiny", "model.layers=1", "model.dropout=0.1"],
    "convnet": [*SMALL_IMAGES, "task.label_smoothing=0.1"],
    "tabular": list_example("tabular", "arrays", "tabular", "task=regression", "optimizer=adam"),
    "resnet": list_example("resnet", "arrays", "resnet", "data.channels=[images]", "optimizer=sgd", *BATCH_NORM),
    "lstm": list_example("lstm", "arrays", "lstm", "optimizer.max_grad_norm=1.0"),
    "gpt": list_example("gpt", "lines", "gpt", "data.tokenizer=bytes", "train.max_length=32", "task=language_model"),
    "hf": list_example("hf", "arrays", "lstm", "optimizer.semantics=native"),
}
# Steps in which no host may wait. bfloat16 runs on the CPU, because the simulated device has no autocast.
CLIPPED = ["optimizer.clip_norm=0.1", "optimizer.max_grad_norm=null"]
STEPS_WITHOUT_WAITING = {"bert": ["train.padding=unpadded"], "convnet": CLIPPED, "gpt": []}
FLOAT32_AND_BFLOAT16 = [(DEVICE, []), (CPU, ["train.precision=bfloat16"])]


@cache
def prepare(strategy: str, model: str, *overrides: str) -> RunContext:
    choices = [f"strategy={strategy}", *MODELS[model], *overrides, f"cache_dir={DIRECTORY}/cache"]
    return make_ready(parse_config(compose_quickly(*choices)))


@contextmanager
def replicas_on(device: torch.device, module: Any) -> Iterator[None]:
    """Give the replicas of a strategy, whose module is passed, a device in the body."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(module, "select_replica_devices", lambda count, _: [device] * count))
        if device == DEVICE:
            stack.enter_context(SimulatedDevice())
            if module is dp:  # a mode is one of a thread
                pool = partial(ThreadPoolExecutor, initializer=lambda: SimulatedDevice().__enter__())
                stack.enter_context(patch.object(dp, "ThreadPoolExecutor", lambda count, **_: pool(count)))
                # Its measurement of memory reads addresses, which wrappers do not have
                stack.enter_context(patch.object(dp, "saved_tensors_hooks", lambda *_: nullcontext()))
        if module in (ddp, allreduce):
            stack.enter_context(patch.object(module, "init_process_group", lambda *_: None))
            stack.enter_context(patch.object(module, "atexit"))  # this process ends its group once
        yield


def train(kind: str, context: RunContext, device: torch.device, plant: str = "") -> tuple[list[list[float]], State]:
    """Train two steps, evaluate, and load the state that was reached. Return losses and norms, and the state.

    `plant` is what stays on the CPU by mistake.
    """
    module, strategy_class = STRATEGIES[kind]
    splits = context.inputs.cache
    with replicas_on(device, module):
        strategy = strategy_class(context, ALONE)
        with PLANTS[plant](strategy):
            rows = []
            for result in strategy.train(planned_batches(context.config, splits.train, STEPS)):
                rows.append([float(result.loss), float(result.grad_norm)])
                if plant == "optimizer":
                    slots = next(iter(strategy.optimizer._optimizer.state.values()))
                    slots["exp_avg"] = slots["exp_avg"].cpu()
        evaluation = strategy.evaluate(islice(validation_batches(context.config, splits.validation), 1))
        rows.append([evaluation.summed_loss, evaluation.summed_metric])
        state = strategy.state()
        state = State(*({name: array.copy() for name, array in arrays.items()} for arrays in vars(state).values()))
        strategy.load(SimpleNamespace(position=Position(step=2), load=lambda: state))
        batch = next(iter(planned_batches(context.config, splits.train, range(3, 4))))
        (result,) = strategy.train([batch])
        rows.append([float(result.loss), float(result.grad_norm)])
    return rows, state


def leave_on_cpu(name: str) -> Callable[[Any], Any]:
    """Return a plant that leaves an array of the batch on the CPU."""
    to_tensors = single.to_tensors

    def to_tensors_but_one(shard: Any, device: torch.device) -> list[dict[str, torch.Tensor]]:
        return [{**arrays, name: arrays[name].cpu()} for arrays in to_tensors(shard, device)]

    return lambda strategy: patch.object(single, "to_tensors", to_tensors_but_one)


@contextmanager
def leave_statistics_on_cpu(strategy: Any) -> Iterator[None]:
    for layer in strategy.model.modules():
        if hasattr(layer, "running_mean"):
            layer.running_mean = layer.running_mean.cpu()
    yield


def leave_mask_on_cpu(strategy: Any) -> Any:
    hash_to_mask = dropout._hash_to_mask
    return patch.object(dropout, "_hash_to_mask", lambda *arguments: hash_to_mask(*arguments).cpu())


PLANTS: dict[str, Callable[[Any], Any]] = {
    "": lambda strategy: nullcontext(),
    "labels": leave_on_cpu("labels"),
    "weights": leave_on_cpu("weights"),
    "mask": leave_mask_on_cpu,
    "statistics": leave_statistics_on_cpu,
    "optimizer": lambda strategy: nullcontext(),
}


def compare(kind: str, model: str, *overrides: str) -> object:
    """Return the largest difference between the CPU and the simulated device, or the error of the latter."""
    context = prepare(kind, model, *overrides)
    rows, state = train(kind, context, CPU)
    try:
        simulated_rows, simulated_state = train(kind, context, DEVICE)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    differences = [np.abs(np.subtract(rows, simulated_rows)).max() / np.abs(rows).max()]
    differences += [np.abs(array - simulated_state.weights[name]).max() for name, array in state.weights.items()]
    return float(max(differences))


def find(plant: str, model: str) -> str:
    """Return the error of a run with a plant."""
    try:
        train("single", prepare("single", model, "train.device=auto"), DEVICE, plant)
    except RuntimeError as error:
        return str(error)
    return ""


def find_synchronizations(device: torch.device, kind: str, model: str, *overrides: str) -> list[str]:
    """Return the operations of the third step for which the host waits for a device.

    In the second step DDP's ranks agree on their buckets, once.
    """
    context = prepare(kind, model, *overrides)
    module, strategy_class = STRATEGIES[kind]
    with replicas_on(device, module):
        strategy = strategy_class(context, ALONE)
        results = strategy.train(planned_batches(context.config, context.inputs.cache.train, range(1, 4)))
        next(results), next(results)
        with SynchronizationFinder(device.type) as finder:
            next(results)
    return finder.operations


def find_waits_for_class_weights() -> list[str]:
    """Return the operations for which the host waits in a loss with weights of the classes of several labels."""
    losses = build_task_functions(replace(CLASSIFICATION, class_weights=[1.0, 2.0, 3.0])).losses
    with SimulatedDevice(), SynchronizationFinder(DEVICE.type) as finder:
        losses(torch.zeros(2, 4, 3, device=DEVICE), torch.ones(2, 4, dtype=torch.int64, device=DEVICE))
    return finder.operations


def work_on(device: torch.device) -> list[torch.Tensor]:
    """Return what a worker of a parameter server sends: losses, norms and gradients."""
    context, sent = prepare("parameter_server", "bert"), []
    requests = iter([ComputeGradient(1, 0), ComputeGradient(2, 0)])

    def receive(_: object, expected: type) -> ComputeGradient | AppliedUpdate:
        if expected is AppliedUpdate:
            return AppliedUpdate(loss=0.0, grad_norm=0.0, staleness=0, worker=0)
        if (request := next(requests, None)) is None:
            raise OSError  # the coordinator has ended
        return request

    def send(_: object, message: object) -> None:
        if isinstance(message, ApplyGradient):
            sent.append(torch.tensor([message.loss, message.grad_norm]))

    patches: list[Any] = [
        patch.object(worker, "connect_to_servers", lambda *_: [None]),
        patch.object(worker, "connect", MagicMock()),
        patch.object(worker, "receive_message", receive),
        patch.object(worker, "send_message", send),
        patch.object(shards, "send_message", lambda *_: None),
        patch.object(shards, "receive_message", lambda *_: ParametersVersion(0)),
        patch.object(shards, "receive_tensor", lambda _, tensor: torch.linspace(-0.1, 0.1, len(tensor))),
        patch.object(shards, "send_tensor", lambda _, tensor: sent.append(tensor)),
    ]
    group: Any = SimpleNamespace(rank=2, store=MagicMock())
    with replicas_on(device, worker), ExitStack() as stack:
        for applied in patches:
            stack.enter_context(applied)
        worker.work(context, group)
    assert not any(isinstance(tensor, SimulatedTensor) for tensor in sent)
    return sent


def observe() -> float:
    """Return the largest difference of what the model of a run reports to a diagnosis on either device."""
    context = prepare("single", "resnet")
    context = prepare_run(context.config, "torch", Path(tempfile.mkdtemp(dir=DIRECTORY)))
    batch = next(iter(planned_batches(context.config, context.inputs.cache.train, STEPS)))
    weights, shard = context.inputs.initial.weights(), batch.shard(0, 1)
    reports = []
    for device in (CPU, DEVICE):
        with replicas_on(device, observed_model):
            observed = observed_model.ObservedModel(str(context.run_dir))
            paths = {*observed.layers().values()}
            first = observed.compute(weights, shard, batch.weight, training=True, paths=paths)
            calls = first.calls
            observed.compute(weights, shard, batch.weight, training=True, paths=paths, replacements=calls)
            gradients = observed.gradients(weights, shard, batch.weight)
            returned = {path: call.returned for path, call in calls.items()}
            reports.append({**gradients, **returned, "losses": first.losses[0], "outputs": first.outputs[0]})
    a, b = reports
    return float(max(np.abs(array - b[name]).max() for name, array in a.items() if array is not None))


def main() -> None:
    os.environ["LOCAL_RANK"] = "0"
    store = dist.HashStore()
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    # One process describes all examples: each would import PyTorch again
    with Side("torch_impl") as side, patch.object(custom, "Side", lambda *_, **__: nullcontext(side)):
        report: dict[str, object] = {f"single {model}": compare("single", model) for model in MODELS}
    for kind in ("dp", "ddp", "allreduce"):
        for model in ("bert", "resnet"):
            report[f"{kind} {model}"] = compare(kind, model, f"strategy.replicas={2 if kind == 'dp' else 1}")
    pairs = zip(work_on(CPU), work_on(DEVICE), strict=True)
    report["parameter_server bert"] = max(float((a - b).abs().max()) for a, b in pairs)
    report["diagnosis"] = observe()
    models = {"mask": "bert", "statistics": "resnet"}
    report |= {f"planted {plant}": find(plant, models.get(plant, "convnet")) for plant in PLANTS if plant}
    for kind, model in product(("single", "ddp"), STEPS_WITHOUT_WAITING):
        for device, precision in FLOAT32_AND_BFLOAT16:
            overrides = ["strategy.replicas=1", *STEPS_WITHOUT_WAITING[model], *precision]
            report[f"waits {kind} {model} {device.type}"] = find_synchronizations(device, kind, model, *overrides)
    report["waits class weights"] = find_waits_for_class_weights()
    report["planted wait"] = find_synchronizations(DEVICE, "single", "lstm")  # the model asks for lengths
    print(json.dumps(report))


if __name__ == "__main__":
    main()
