"""Fully sharded data parallelism: every rank holds a part of each parameter, each gradient and each optimizer slot.

PyTorch's fully_shard gathers the parameters of a layer before the layer computes, frees them afterwards, and sums the
gradients of the layer into the parts of the ranks.
"""

import atexit
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter
from typing_extensions import override

from common.config.strategies import FsdpSettings
from common.data.batches import GlobalBatch
from common.errors import UserError
from common.models.stored_tensors import read_part
from common.models.weight_files import check_weights
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy, require_settings
from torch_impl.batch_norm import average_statistics, find_moving_statistics, synchronize_batch_norm
from torch_impl.batches import to_tensors
from torch_impl.changing_buffers import average_buffers, check_equal_buffers, find_changing_buffers
from torch_impl.communication.rendezvous import Group, init_process_group
from torch_impl.communication.replica_sums import make_sum_over_ranks
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.models import build_model
from torch_impl.optimizer import Optimizer
from torch_impl.step import backward, compute_evaluation_sums, evaluate, seed_dropout
from torch_impl.strategies.held_bytes import gather_held_bytes
from torch_impl.strategies.loss_sums import sum_over_ranks
from torch_impl.strategies.sharded_layers import check_replaced, check_shardable, find_layers
from torch_impl.strategies.whole_arrays import allocate_whole_arrays
from torch_impl.task import build_task_functions


class FSDP(Strategy[FsdpSettings]):
    """One rank of torch.distributed.fsdp.fully_shard.

    `sharded` are the model's parameters: DTensors, divided along their first axis. `parts` are this rank's rows of the
    DTensors, as plain parameters in the same memory. The optimizer updates the parts.
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
        # `_shard` moves the model to the device layer by layer.
        self.model = build_model(config, replace(context.inputs.initial, is_deferred=True))
        make_sum_function = partial(make_sum_over_ranks, config.cluster.timeout)
        self.task = build_task_functions(config.task, context.inputs.initial.hf_config, make_sum_function)
        if config.model.has_global_batch_norm:
            synchronize_batch_norm(self.model, make_sum_function())
        self.shards = self.world_size // self.settings.copies  # number of parts into which each parameter is divided
        self.shard = self.rank % self.shards  # index of this rank's part
        self.calls = 0  # a hash of the sequence of all calls of layers so far
        self.layers = self._shard()
        self.sharded = dict(self.model.named_parameters())
        deferred = [name for name, tensor in self.sharded.items() if tensor.is_meta]
        self.model._apply(self._allocate)
        self.parts = {name: Parameter(_get_part(tensor), tensor.requires_grad) for name, tensor in self.sharded.items()}
        self._load_parts(context.inputs.initial.weights(), deferred)
        trainable = {name: part for name, part in self.parts.items() if part.requires_grad}
        self.optimizer = PartOptimizer(config, trainable)

    def _shard(self) -> list[FSDPModule]:
        """Divide the parameters of the model over the ranks. Return the layers that gather their parameters."""
        check_shardable(self.model)
        originals = {name: weakref.ref(parameter) for name, parameter in self.model.named_parameters()}
        policy = MixedPrecisionPolicy(_get_dtype(self.settings.param_dtype), _get_dtype(self.settings.reduce_dtype))
        shape = (self.settings.copies, self.shards) if self.settings.copies > 1 else (self.shards,)
        mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("copy", "shard")[-len(shape) :])
        layers: list[FSDPModule] = []
        for module in (*find_layers(self.model, self.settings.layers), self.model):
            # The model itself gathers the parameters outside the layers. They stay gathered: backward begins with them.
            reshards = self.settings.reshard_after_forward and module is not self.model
            layer = fully_shard(module, mesh=mesh, reshard_after_forward=reshards, mp_policy=policy)
            layer.set_gradient_divide_factor(1.0)  # gradients of the shards add up to the gradient of the global batch
            layer.set_force_sum_reduction_for_comms(True)
            module.register_forward_pre_hook(self._make_counting_hook(len(layers)))
            layers.append(layer)
        layers[-1].set_reduce_scatter_unused_params(True)  # the ranks may use different parameters of a layer
        check_replaced(originals)
        return layers

    def _make_counting_hook(self, index: int) -> Callable[[Module, object], None]:
        """Return a hook that includes each call of layer number `index` in `calls`."""

        def count_call(module: Module, arguments: object) -> None:
            self.calls = hash((self.calls, index))

        return count_call

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            seed_dropout(self.config, batch.step, self.rank)
            shard = to_tensors(batch.shard(self.rank, self.world_size), self.device)
            with _explain_mixed_parameters():
                loss = backward(self.model, self.task, shard, batch.weight, self.precision)
            for name, tensor in self.sharded.items():  # move the gradients to the parts, which the optimizer updates
                self.parts[name].grad, tensor.grad = None if tensor.grad is None else _get_part(tensor.grad), None
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
        evaluation = evaluate(batches, self._compute_evaluation_sums, dist.all_reduce)
        for layer in self.layers:
            layer.reshard()  # frees gathered parameters; in training, the backward pass does so
        self._check_calls()
        return evaluation

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> torch.Tensor:
        shard = to_tensors(batch.shard(self.rank, self.world_size), self.device)
        with _explain_mixed_parameters():
            return compute_evaluation_sums(self.model, self.task, shard, self.precision)

    def _check_calls(self) -> None:
        """Raise UserError if the ranks called different sequences of layers, and so gathered wrong parameters."""
        extremes = torch.tensor([self.calls, -self.calls], device=self.device)  # reduced to the maximum and -minimum
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        if extremes.sum() != 0:
            raise UserError(
                "strategy=fsdp: the model calls different layers for different examples, or in a different order, and "
                "gathered wrong parameters; in strategy.layers name layers that are always called, or set it to none"
            )

    @override
    def share(self, values: np.ndarray) -> np.ndarray:
        shared = torch.from_numpy(values).to(self.device)
        dist.broadcast(shared, src=0)
        return shared.cpu().numpy()

    @override
    def state(self) -> State:
        """Return the whole state on the chief, which receives one part at a time; an empty State on the other ranks."""
        self._check_calls()
        average_statistics(self.model, dist.all_reduce, self.world_size)
        check_equal_buffers(self.model, dist.all_reduce, self.world_size)
        weight_parts = [(name, name, part) for name, part in self.parts.items()]
        slot_parts = [(f"{slot}.{name}", name, part) for slot, name, part in self.optimizer.slot_tensors()]
        parts = (*weight_parts, *slot_parts)
        whole: dict[str, np.ndarray] = {}
        if self.is_chief:
            types = {key: (tuple(self.sharded[name].shape), part.dtype) for key, name, part in parts}
            whole = allocate_whole_arrays(self.context, types)
        for key, _, part in parts:
            self._gather(part, whole.get(key))
        if not self.is_chief:
            return State({}, {})
        buffers = {name: buffer.cpu().numpy() for name, buffer in self._find_buffers().items()}
        weights = {key: whole[key] for key, _, _ in weight_parts}
        return State({**weights, **buffers}, {key: whole[key] for key, _, _ in slot_parts})

    def _find_buffers(self) -> dict[str, torch.Tensor]:
        """Return the weights that are not parameters. fully_shard does not divide them."""
        return {**find_moving_statistics(self.model), **find_changing_buffers(self.model)}

    @torch.no_grad()
    def _gather(self, part: torch.Tensor, whole: np.ndarray | None) -> None:
        """Fill a whole array with the parts of all ranks.

        Args:
            part: This rank's rows of the parameter or of one of its slots.
            whole: The whole array; None on the ranks other than the chief.
        """
        if whole is None:
            if part.numel() and self.rank < self.shards:  # only the ranks of the first copy send
                dist.send(part.detach(), dst=0)
            return
        for rank, rows in enumerate(torch.from_numpy(whole).chunk(self.shards)):
            if rank == 0:
                rows.copy_(part)
            elif rows.numel():
                received = part.new_empty(rows.shape)  # on the device
                dist.recv(received, src=rank)
                rows.copy_(received)

    @override
    @torch.no_grad()
    def load(self, checkpoint: SavedState) -> None:
        state = checkpoint.load()
        buffers = self._find_buffers()
        check_weights(state.weights, buffers)
        self._load_parts(state.weights, self.parts)
        for name, buffer in buffers.items():
            buffer.copy_(torch.from_numpy(state.weights[name]))
        slots = {name: read_part(state.slots, name, self.shard, self.shards) for name in state.slots}
        self.optimizer.load(slots, checkpoint.position)

    def _allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a part of a parameter in memory, with arbitrary values, if it is on the meta device."""
        is_part = isinstance(tensor, DTensor) and tensor.is_meta
        return torch.empty_like(tensor, device=self.device) if is_part else tensor

    @torch.no_grad()
    def _load_parts(self, weights: Mapping[str, np.ndarray], names: Collection[str]) -> None:
        """Set this rank's parts of the parameters with these names. Raise UserError if a weight is missing."""
        check_weights(weights, names)
        for name in names:
            self.parts[name].copy_(torch.from_numpy(read_part(weights, name, self.shard, self.shards)))

    @override
    def report(self) -> dict[str, object]:
        peaks: list[list[int]] = [[]] * self.world_size
        dist.all_gather_object(peaks, measure_peak_memory([self.device]))
        return {
            "peak_memory_bytes": [peak for rank_peaks in peaks for peak in rank_peaks],
            **gather_held_bytes(self.parts.values(), self.optimizer),
        }


class PartOptimizer(Optimizer):
    """An optimizer that updates this rank's parts of the parameters."""

    @override
    def _compute_norms(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the norm of each parameter's whole gradient. `gradients` are this rank's parts."""
        squares = torch.stack(torch._foreach_norm(gradients)).square()
        dist.all_reduce(squares)
        copies = require_settings(self.config.strategy, FsdpSettings).copies
        # Every copy of a part has the same gradient, so the sum over the ranks counts each part `copies` times.
        return list((squares / copies).sqrt())


def _get_dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)


def _get_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, in the same memory."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()


@contextmanager
def _explain_mixed_parameters() -> Iterator[None]:
    """Replace PyTorch's error by a UserError if the model reads a parameter while the parameter is divided."""
    try:
        yield
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" not in str(error):
            raise
        raise UserError(
            "strategy=fsdp: the model uses a parameter of a layer outside the layer's forward pass; name other layers "
            "in strategy.layers, or set it to none"
        ) from error
