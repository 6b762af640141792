"""DataParallel: one process; a step scatters the batch, replicates the model and applies the replicas in parallel.

Where the loss is computed is `strategy.loss`: from the logits, gathered on one replica (torch.nn.DataParallel, the
classic); in each replica's forward pass, so that only scalars are gathered; or by a parallel criterion, from logits
that stay where they are (DataParallelModel and DataParallelCriterion of PyTorch-Encoding). Autograd turns the moves
around: its backward pass scatters the gradients of what was gathered, and sums those of the copies into the model's.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import Module
from torch.nn.parallel import replicate

from common.config.strategies import DpSettings
from common.data.batches import GlobalBatch
from common.hardware import count_cores
from common.run.context import RunContext
from common.training.state import Saved, State
from common.training.strategy import Evaluation, StepResult
from torch_impl.batch_norm import SumOverThreads, find_moving_statistics, synchronize_batch_norm
from torch_impl.batches import to_tensors
from torch_impl.communication.rendezvous import Group
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.models import build_model, trainable_parameters
from torch_impl.optimizer import Optimizer
from torch_impl.step import MicroBatch, compute_evaluation_sums, compute_outputs, evaluate, seed_dropout, sum_losses
from torch_impl.task import build_task_functions
from torch_impl.training_state import collect_state, load_state

Shard = list[MicroBatch]
TRAFFIC = ("scattered", "broadcast", "gathered", "reduced", "logits", "memory")  # bytes of each replica and step


class DP:
    is_chief = True

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        settings = config.strategy
        assert isinstance(settings, DpSettings)
        self.world_size = settings.world_size
        self.devices = select_replica_devices(self.world_size)
        self.on_gpus = self.devices[0].type == "cuda"
        self.loss, self.output = settings.loss, settings.output_device
        self.config, self.precision = config, config.train.precision
        self.model = build_model(config, context.inputs.initial).to(self.devices[0])
        self.task = build_task_functions(config.task)
        self.sum_over_threads = SumOverThreads(self.world_size)
        if config.model.has_global_batch_norm:
            synchronize_batch_norm(self.model, self.sum_over_threads)
        self.structures = [] if self.on_gpus else [copy.deepcopy(self.model) for _ in self.devices]
        threads = max(1, count_cores() // self.world_size)
        self.pool = ThreadPoolExecutor(self.world_size, initializer=torch.set_num_threads, initargs=(threads,))
        self.optimizer = Optimizer(config, trainable_parameters(self.model))
        self.traffic = self._no_traffic()

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self._train(True)
        for batch in batches:
            seed_dropout(self.config, batch.step)
            self.traffic = self._no_traffic()
            loss = self._summed_loss(self._scatter(batch)) / batch.weight
            loss.backward()
            grad_norm = self.optimizer.update(batch.step)
            if self.on_gpus:
                self.traffic["memory"] = measure_peak_memory(self.devices)
            yield StepResult(batch, loss.detach(), grad_norm, traffic=self.traffic)

    def _train(self, mode: bool) -> None:
        for module in (self.model, *self.structures):
            module.train(mode)

    def _no_traffic(self) -> dict[str, list[int]]:
        return {kind: [0] * self.world_size for kind in TRAFFIC}

    def _summed_loss(self, shards: list[Shard]) -> torch.Tensor:
        models = self._replicate()
        if self.loss == "in_forward":
            losses = self._parallel_apply(self._loss, models, shards)
        elif self.loss == "gathered":
            logits = self._gather(self._parallel_apply(self._logits, models, shards))
            self.traffic["logits"][self.output] += _bytes(logits)
            return sum_losses(self.task, logits, _targets([part for shard in shards for part in shard], logits.device))
        else:
            outputs = self._parallel_apply(self._logits, models, shards)
            losses = self._parallel_apply(self._criterion, outputs, shards)
        return self._gather(losses).sum()

    def _logits(self, replica: int, model: Any, shard: Shard) -> torch.Tensor:
        logits = torch.cat([compute_outputs(model, part, self.precision) for part in shard])
        self.traffic["logits"][replica] = _bytes(logits)
        return logits

    def _criterion(self, replica: int, logits: torch.Tensor, shard: Shard) -> torch.Tensor:
        return sum_losses(self.task, logits, _targets(shard, logits.device))

    def _loss(self, replica: int, model: Any, shard: Shard) -> torch.Tensor:
        return self._criterion(replica, self._logits(replica, model, shard), shard)

    def _scatter(self, batch: GlobalBatch) -> list[Shard]:
        shards = []
        for replica, device in enumerate(self.devices):
            shards.append(to_tensors(batch.shard(replica, self.world_size), device))
            self.traffic["scattered"][replica] = sum(_bytes(*part.values()) for part in shards[-1]) if replica else 0
        return shards

    def _replicate(self) -> list[Any]:
        parameters = dict(self.model.named_parameters())
        copied = [0] + [_bytes(*parameters.values())] * (self.world_size - 1)  # the first replica's device has them
        self.traffic["broadcast"] = self.traffic["reduced"] = copied
        if self.on_gpus:
            return list(replicate(self.model, self.devices))
        copies = [{name: parameter.clone() for name, parameter in parameters.items()} for _ in self.devices]
        return [partial(_call, structure, each) for structure, each in zip(self.structures, copies, strict=True)]

    def _parallel_apply(self, function: Callable[..., torch.Tensor], *replicas: list[Any]) -> list[torch.Tensor]:
        """Call the function for every replica, in a thread of its own, with its index and its part of each list."""
        grad = torch.is_grad_enabled()  # a thread's own

        def apply(replica: int, *arguments: Any) -> torch.Tensor:
            kept: dict[int, int] = {}  # bytes that backward will need, by address

            def keep(tensor: torch.Tensor) -> torch.Tensor:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            self.sum_over_threads.enter(replica)
            try:
                with torch.set_grad_enabled(grad), saved_tensors_hooks(keep, lambda tensor: tensor):
                    result = function(replica, *arguments)
            except BaseException:
                self.sum_over_threads.abort()
                raise
            self.traffic["memory"][replica] += sum(kept.values())
            return result

        return list(self.pool.map(apply, range(len(replicas[0])), *replicas))

    def _gather(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        for replica, output in enumerate(outputs):
            self.traffic["gathered"][replica] = _bytes(output) if replica != self.output else 0
        return torch.cat([torch.atleast_1d(output).to(self.devices[self.output]) for output in outputs])

    def _average_statistics(self) -> None:
        """On the CPU: every structure has moved its own."""
        found = [find_moving_statistics(each) for each in self.structures]
        for name, each in find_moving_statistics(self.model).items():
            if found:
                each.copy_(torch.stack([copied[name] for copied in found]).mean(0))
            for copied in found:
                copied[name].copy_(each)

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self._average_statistics()
        self._train(False)
        return evaluate(batches, self._evaluation_sums)

    def _evaluation_sums(self, batch: GlobalBatch) -> torch.Tensor:
        sums = self._parallel_apply(self._shard_sums, self._replicate(), self._scatter(batch))
        return torch.stack([replica_sums.to(self.devices[0]) for replica_sums in sums]).sum(0)

    def _shard_sums(self, replica: int, model: Any, shard: Shard) -> torch.Tensor:
        return compute_evaluation_sums(model, self.task, shard, self.precision)

    def state(self) -> State:
        self._average_statistics()
        return collect_state(self.model, self.optimizer)

    def load(self, checkpoint: Saved) -> None:
        load_state(self.model, self.optimizer, checkpoint)
        for each in self.structures:
            each.load_state_dict(self.model.state_dict())

    def report(self) -> dict[str, Any]:
        return {"peak_memory_bytes": measure_peak_memory(self.devices)}


def _call(structure: Module, parameters: MicroBatch, **inputs: torch.Tensor) -> torch.Tensor:
    """A replica on the CPU: autograd sums the gradients of the copied parameters into the originals."""
    logits: torch.Tensor = functional_call(structure, parameters, kwargs=inputs)
    return logits


def _targets(shard: Shard, device: torch.device) -> MicroBatch:
    """The labels and weights of a shard's examples."""
    return {name: torch.cat([part[name].to(device) for part in shard]) for name in ("labels", "weights")}


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
