"""DataParallel: one process, which scatters the batch, replicates the model and runs the replicas in parallel.

`strategy.loss` says how the loss is computed:
- "gathered": from the logits of all replicas, gathered on one replica, as torch.nn.DataParallel is usually used;
- "in_forward": in the forward pass of each replica, so that only scalars are gathered;
- "criterion": by a parallel criterion, from logits that stay on their devices (DataParallelModel and
  DataParallelCriterion of PyTorch-Encoding).

Autograd reverses these transfers: backward scatters the gradients of gathered tensors, and sums the gradients of the
copied parameters into the gradients of the model.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import Module
from torch.nn.parallel import replicate
from typing_extensions import override

from common.config.strategies import DpSettings
from common.data.batches import GlobalBatch
from common.errors import UserError
from common.hardware import count_cores
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from torch_impl.batch_norm import find_moving_statistics, synchronize_batch_norm
from torch_impl.batches import to_tensors
from torch_impl.changing_buffers import copy_buffers, find_changing_buffers, gather_replica_buffers
from torch_impl.communication.rendezvous import Group
from torch_impl.communication.replica_sums import SumOverThreads
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.keras_module import KerasModule
from torch_impl.models import build_model, trainable_parameters
from torch_impl.optimizer import Optimizer
from torch_impl.step import MicroBatch, compute_evaluation_sums, compute_outputs, evaluate, seed_dropout, sum_losses
from torch_impl.task import build_task_functions
from torch_impl.training_state import collect_state, load_state
from torch_impl.unregistered_modules import list_unregistered

Shard = list[MicroBatch]
Replica = Callable[..., torch.Tensor]  # a copy of the model, called with the inputs by name
# The numbers of bytes that a step reports for each replica: the examples, parameters, outputs and gradients that it
# moves, its logits, and its memory (the peak of its GPU; on the CPU, the tensors that backward will need).
TRAFFIC_KINDS = ("scattered", "broadcast", "gathered", "reduced", "logits", "memory")


class DP(Strategy[DpSettings]):
    """torch.nn.DataParallel with three ways to compute the loss.

    On GPUs torch.nn.parallel makes the replicas. On the CPU they are copies of the model in threads.
    """

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        self.devices = select_replica_devices(self.world_size, config.train.device)
        self.on_gpus = self.devices[0].type == "cuda"
        self.precision = config.train.precision
        self.model = build_model(config, context.inputs.initial).to(self.devices[0])
        self.sum_over_threads = SumOverThreads(self.world_size)
        hf_config = context.inputs.initial.hf_config
        self.task = build_task_functions(config.task, hf_config, lambda: self.sum_over_threads)
        self.gathered_task = build_task_functions(config.task, hf_config)
        if config.model.has_global_batch_norm:
            synchronize_batch_norm(self.model, self.sum_over_threads)
        if self.on_gpus and find_changing_buffers(self.model, dependent=True) and self.world_size > 1:
            raise UserError("model.buffers=average: DataParallel keeps the buffers of one GPU only; use strategy=ddp")
        if self.on_gpus and isinstance(self.model, KerasModule) and self.world_size > 1:
            raise UserError("strategy=dp: the replicas of a Keras model would share the variables of one GPU; use ddp")
        if not isinstance(self.model, KerasModule) and (path := next(iter(list_unregistered(self.model)), "")):
            raise UserError(f"strategy=dp: does not copy {path}, a layer in a list; use nn.ModuleList or strategy=ddp")
        self.cpu_replicas = [] if self.on_gpus else [copy.deepcopy(self.model) for _ in self.devices]
        threads = max(1, count_cores() // self.world_size)
        self.pool = ThreadPoolExecutor(self.world_size, initializer=torch.set_num_threads, initargs=(threads,))
        self.optimizer = Optimizer(config, trainable_parameters(self.model))
        self.traffic = _no_traffic(self.world_size)

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self._set_training(True)
        for batch in batches:
            seed_dropout(self.config, batch.step)
            self.traffic = _no_traffic(self.world_size)
            loss = self._compute_summed_loss(self._scatter(batch)) / batch.weight
            loss.sum().backward()
            grad_norm = self.optimizer.update(batch.step)
            self._average_buffers()
            if self.on_gpus:
                self.traffic["memory"] = measure_peak_memory(self.devices)
            yield StepResult(batch, loss.detach(), grad_norm, traffic=self.traffic)

    def _set_training(self, mode: bool) -> None:
        for module in (self.model, *self.cpu_replicas):
            module.train(mode)

    def _compute_summed_loss(self, shards: list[Shard]) -> torch.Tensor:
        replicas = self._replicate()
        if self.settings.loss == "in_forward":
            losses = self._parallel_apply(self._compute_loss, replicas, shards)
        elif self.settings.loss == "gathered":
            logits = self._gather(self._parallel_apply(self._compute_logits, replicas, shards))
            self.traffic["logits"][self.settings.output_device] += _count_bytes(logits)
            whole_batch = [micro_batch for shard in shards for micro_batch in shard]
            return sum_losses(self.gathered_task, logits, _get_targets(whole_batch, logits.device))
        else:
            outputs = self._parallel_apply(self._compute_logits, replicas, shards)
            losses = self._parallel_apply(self._apply_criterion, outputs, shards)
        return self._gather(losses).reshape(len(losses), *losses[0].shape).sum(0)

    def _compute_logits(self, index: int, replica: Replica, shard: Shard) -> torch.Tensor:
        logits = torch.cat([compute_outputs(replica, micro_batch, self.precision) for micro_batch in shard])
        self.traffic["logits"][index] = _count_bytes(logits)
        if self.on_gpus and index == 0:
            assert isinstance(replica, Module)
            copy_buffers(replica, self.model)  # otherwise a buffer that forward assigns anew would be lost
        return logits

    def _apply_criterion(self, index: int, logits: torch.Tensor, shard: Shard) -> torch.Tensor:
        return sum_losses(self.task, logits, _get_targets(shard, logits.device))

    def _compute_loss(self, index: int, replica: Replica, shard: Shard) -> torch.Tensor:
        return self._apply_criterion(index, self._compute_logits(index, replica, shard), shard)

    def _scatter(self, batch: GlobalBatch) -> list[Shard]:
        shards = []
        for index, device in enumerate(self.devices):
            shards.append(to_tensors(batch.shard(index, self.world_size), device))
            scattered = sum(_count_bytes(*micro_batch.values()) for micro_batch in shards[-1])
            self.traffic["scattered"][index] = scattered if index else 0  # the batch is on the first device
        return shards

    def _replicate(self) -> list[Replica]:
        """Return a copy of the model for each replica. Autograd sums the gradients of the copies into the model."""
        parameters = dict(self.model.named_parameters())
        # The first device has the model. Each other device receives the parameters and returns their gradients.
        copied_bytes = [0] + [_count_bytes(*parameters.values())] * (self.world_size - 1)
        self.traffic["broadcast"] = self.traffic["reduced"] = copied_bytes
        if self.on_gpus:
            return list(replicate(self.model, self.devices))
        copies = [{name: parameter.clone() for name, parameter in parameters.items()} for _ in self.devices]
        pairs = zip(self.cpu_replicas, copies, strict=True)
        return [partial(_call_replica, replica, parameter_copies) for replica, parameter_copies in pairs]

    def _parallel_apply(self, function: Callable[..., torch.Tensor], *lists: Sequence[object]) -> list[torch.Tensor]:
        """Call a function for each replica in a separate thread, with the replica's index and its item of each list."""
        grad_is_enabled = torch.is_grad_enabled()  # every thread has a setting of its own: pass on this thread's

        def apply(index: int, *arguments: object) -> torch.Tensor:
            saved_bytes: dict[int, int] = {}  # sizes of the tensors that backward will need, by address

            def count_saved(tensor: torch.Tensor) -> torch.Tensor:
                saved_bytes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            self.sum_over_threads.enter(index)
            try:
                with torch.set_grad_enabled(grad_is_enabled), saved_tensors_hooks(count_saved, lambda tensor: tensor):
                    result = function(index, *arguments)
            except BaseException:
                self.sum_over_threads.abort()  # the other replicas would wait for this replica
                raise
            self.traffic["memory"][index] += sum(saved_bytes.values())
            return result

        return list(self.pool.map(apply, range(len(lists[0])), *lists))

    def _gather(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        for index, output in enumerate(outputs):
            self.traffic["gathered"][index] = _count_bytes(output) if index != self.settings.output_device else 0
        device = self.devices[self.settings.output_device]
        return torch.cat([torch.atleast_1d(output).to(device) for output in outputs])

    def _average_buffers(self) -> None:
        """Make all CPU replicas continue with the mean of the buffers that depend on the examples."""
        if find_changing_buffers(self.model, dependent=True) and self.cpu_replicas:
            gather_replica_buffers(self.model, self.cpu_replicas)
            for replica in self.cpu_replicas:
                copy_buffers(self.model, replica)

    def _average_statistics(self) -> None:
        """Write the mean of the BatchNorm statistics of all CPU replicas to the model and to each replica.

        On GPUs there is nothing to do: the first replica has updated the statistics of the model itself.
        """
        replica_statistics = [find_moving_statistics(replica) for replica in self.cpu_replicas]
        for name, mean in find_moving_statistics(self.model).items():
            if replica_statistics:
                mean.copy_(torch.stack([statistics[name] for statistics in replica_statistics]).mean(0))
            for statistics in replica_statistics:
                statistics[name].copy_(mean)
        if self.cpu_replicas:
            gather_replica_buffers(self.model, self.cpu_replicas)

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self._average_statistics()
        self._set_training(False)
        return evaluate(batches, self._compute_evaluation_sums)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> torch.Tensor:
        sums = self._parallel_apply(self._compute_shard_sums, self._replicate(), self._scatter(batch))
        return torch.stack([replica_sums.to(self.devices[0]) for replica_sums in sums]).sum(0)

    def _compute_shard_sums(self, index: int, replica: Replica, shard: Shard) -> torch.Tensor:
        return compute_evaluation_sums(replica, self.task, shard, self.precision)

    @override
    def state(self) -> State:
        self._average_statistics()
        return collect_state(self.model, self.optimizer)

    @override
    def load(self, checkpoint: SavedState) -> None:
        load_state(self.model, self.optimizer, checkpoint)
        for replica in self.cpu_replicas:
            replica.load_state_dict(self.model.state_dict())
            copy_buffers(self.model, replica)  # a state dict lacks the buffers that are not persistent

    @override
    def report(self) -> dict[str, object]:
        return {"peak_memory_bytes": measure_peak_memory(self.devices)}


def _no_traffic(world_size: int) -> dict[str, list[int]]:
    """Return zeros for each kind of traffic and replica."""
    return {kind: [0] * world_size for kind in TRAFFIC_KINDS}


def _call_replica(replica: Module, parameters: dict[str, torch.Tensor], **inputs: torch.Tensor) -> torch.Tensor:
    """Call a replica on the CPU with copies of the parameters of the model."""
    logits: torch.Tensor = functional_call(replica, parameters, kwargs=inputs)
    return logits


def _get_targets(shard: Shard, device: torch.device) -> MicroBatch:
    """Return the labels and weights of the examples of a shard."""
    names = ("labels", "weights")
    targets = {name: torch.cat([micro_batch[name].to(device) for micro_batch in shard]) for name in names}
    if "batch_places" in shard[0]:  # the loss of an example depends on the other examples of the batch
        targets["batch_places"] = _join_places(shard).to(device)
    return targets


def _join_places(shard: Shard) -> torch.Tensor:
    """Return the row of each example of the global batch in the joined micro-batches; -1 if the example is missing."""
    joined, start = torch.full_like(shard[0]["batch_places"], -1), 0
    for micro_batch in shard:
        places = micro_batch["batch_places"].to(joined.device)
        joined = torch.where(places >= 0, places + start, joined)
        start += len(micro_batch["weights"])
    return joined


def _count_bytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
