"""ZeroRedundancyOptimizer with DDP: every rank holds all parameters and gradients, but only a part of the slots."""

import atexit
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from common.config.strategies import ZeroSettings
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from torch_impl.batch_norm import average_statistics, synchronize_batch_norm
from torch_impl.batches import to_tensors
from torch_impl.changing_buffers import average_buffers, check_equal_buffers
from torch_impl.communication.rendezvous import Group, init_process_group
from torch_impl.communication.replica_sums import make_sum_over_ranks
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.models import build_model, trainable_parameters
from torch_impl.models.weights import read_weights
from torch_impl.optimizer import Groups, Optimizer
from torch_impl.step import backward, compute_evaluation_sums, evaluate, seed_dropout
from torch_impl.strategies.ddp import make_dependency_hook
from torch_impl.strategies.held_bytes import gather_held_bytes
from torch_impl.strategies.loss_sums import sum_over_ranks
from torch_impl.strategies.whole_arrays import allocate_whole_arrays
from torch_impl.task import build_task_functions
from torch_impl.training_state import load_state


class Zero(Strategy[ZeroSettings]):
    """One rank. It updates a part of the parameters with the gradients that DDP sums, and sends the part to the others.

    A part consists of whole parameters. The gradients of embeddings are dense.
    """

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        self.context = context
        local_rank = int(os.environ["LOCAL_RANK"])
        self.device = select_replica_devices(local_rank + 1, config.train.device)[local_rank]
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        init_process_group(group, config.cluster.timeout, "nccl" if self.device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)  # the group's threads must end before the interpreter does
        self.precision = config.train.precision
        self.model = build_model(config, context.inputs.initial).to(self.device)
        make_sum_function = partial(make_sum_over_ranks, config.cluster.timeout)
        self.task = build_task_functions(config.task, context.inputs.initial.hf_config, make_sum_function)
        if config.model.has_global_batch_norm:
            synchronize_batch_norm(self.model, make_sum_function())
        self.model.register_forward_hook(make_dependency_hook(self.model))
        with warnings.catch_warnings():  # torch 2.13 renames broadcast_buffers; torch 2.11 has only this name
            warnings.simplefilter("ignore", FutureWarning)
            self.replica = DistributedDataParallel(
                self.model,
                broadcast_buffers=False,
                bucket_cap_mb=self.settings.bucket_cap_mb,
                gradient_as_bucket_view=True,
            )
        self.optimizer = PartitionedOptimizer(config, trainable_parameters(self.model))

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.replica.train()
        for batch in batches:
            seed_dropout(self.config, batch.step, self.rank)
            shard = to_tensors(batch.shard(self.rank, self.world_size), self.device)
            # DDP divides the sum of the ranks' gradients by the world size, so the divisor of the losses is smaller.
            loss_divisor = batch.weight / self.world_size
            with self.replica.no_sync():
                losses = [
                    backward(self.replica, self.task, [micro_batch], loss_divisor, self.precision)
                    for micro_batch in shard[:-1]
                ]
            losses.append(backward(self.replica, self.task, shard[-1:], loss_divisor, self.precision))
            loss = torch.stack(losses).sum(0) / self.world_size
            grad_norm = self.optimizer.update(batch.step)
            average_buffers(self.model, dist.all_reduce, self.world_size)
            yield StepResult(batch, loss, grad_norm)

    @override
    def sum_losses(self, results: Sequence[StepResult]) -> list[torch.Tensor]:
        return sum_over_ranks([result.loss for result in results])

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self.model.eval()
        average_statistics(self.model, dist.all_reduce, self.world_size)
        check_equal_buffers(self.model, dist.all_reduce, self.world_size)
        return evaluate(batches, self._compute_evaluation_sums, dist.all_reduce)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> torch.Tensor:
        shard = to_tensors(batch.shard(self.rank, self.world_size), self.device)
        return compute_evaluation_sums(self.model, self.task, shard, self.precision)

    @override
    def share(self, values: np.ndarray) -> np.ndarray:
        shared = torch.from_numpy(values).to(self.device)
        dist.broadcast(shared, src=0)
        return shared.cpu().numpy()

    @override
    def state(self) -> State:
        """Return the weights and, on the chief, the slots of all ranks. The chief receives one slot after the other."""
        average_statistics(self.model, dist.all_reduce, self.world_size)
        check_equal_buffers(self.model, dist.all_reduce, self.world_size)
        return State(read_weights(self.model), self.optimizer.gather_slots(self.rank, self.context))

    @override
    def load(self, checkpoint: SavedState) -> None:
        load_state(self.model, self.optimizer, checkpoint)

    @override
    def report(self) -> dict[str, object]:
        peaks: list[list[int]] = [[]] * self.world_size
        dist.all_gather_object(peaks, measure_peak_memory([self.device]))
        return {
            "peak_memory_bytes": [peak for rank_peaks in peaks for peak in rank_peaks],
            **gather_held_bytes(self.model.parameters(), self.optimizer),
        }


class PartitionedOptimizer(Optimizer):
    """An optimizer that ZeroRedundancyOptimizer divides: a rank has slots and averages for a part of the parameters.

    After an update every rank sends its part of the parameters to the other ranks.
    """

    @override
    def _build(self, groups: Groups) -> torch.optim.Optimizer:
        build_part, name_of = super()._build, dict(zip(self.parameters, self.names, strict=True))

        def build(part: Groups) -> torch.optim.Optimizer:
            return build_part([{**group, "names": [name_of[x] for x in group["params"]]} for group in part])

        # ZeroRedundancyOptimizer copies the entries of a group to every rank's part. `build` adds the names of a part.
        unnamed = [{key: value for key, value in group.items() if key != "names"} for group in groups]
        return ZeroRedundancyOptimizer(unnamed, build)  # type: ignore[arg-type]  # a function, not a class

    @property
    @override
    def _slot_holder(self) -> torch.optim.Optimizer:
        assert isinstance(self._optimizer, ZeroRedundancyOptimizer)
        return self._optimizer.optim

    @override
    def swap_averages(self) -> None:
        super().swap_averages()
        for name, owner in self._find_owners().items():
            dist.broadcast(self.parameters[self.names.index(name)].detach(), src=owner)

    def gather_slots(self, rank: int, context: RunContext) -> dict[str, np.ndarray]:
        """Return the slots of all ranks on rank 0, and nothing on the other ranks. Every rank must call it."""
        held_slots = {(slot, name): tensor for slot, name, tensor in self.slot_tensors()}
        parameters = dict(zip(self.names, self.parameters, strict=True))
        shapes = {
            (slot, name): shape
            for name in self.names
            for slot, shape in self.config.list_slots(name, tuple(parameters[name].shape)).items()
        }
        owners = self._find_owners()
        slots: dict[str, np.ndarray] = {}
        if rank == 0:
            types = {f"{slot}.{name}": (shape, parameters[name].dtype) for (slot, name), shape in shapes.items()}
            slots = allocate_whole_arrays(context, types)
        for (slot, name), shape in shapes.items():
            owner = owners[name]
            if rank == 0:
                tensor = held_slots[slot, name] if owner == 0 else parameters[name].new_empty(shape)
                if owner != 0:
                    dist.recv(tensor, src=owner)
                torch.from_numpy(slots[f"{slot}.{name}"]).copy_(tensor.detach())
            elif rank == owner:
                dist.send(held_slots[slot, name].contiguous(), dst=0)
        return slots

    def _find_owners(self) -> dict[str, int]:
        """Return the rank that has the slots of each parameter, by name, in the same order on every rank."""
        names_by_rank: list[list[str]] = [[]] * dist.get_world_size()
        dist.all_gather_object(names_by_rank, list(self.held))
        return {name: owner for owner, names in enumerate(names_by_rank) for name in names}
