"""DistributedDataParallel: a process for each replica, and an all-reduce of the gradients while backward runs."""

import atexit
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn import Embedding, EmbeddingBag, Module, Parameter
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from common.config.strategies import DdpSettings
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from torch_impl.batch_norm import average_statistics, synchronize_batch_norm
from torch_impl.batches import to_tensors
from torch_impl.changing_buffers import average_buffers, check_equal_buffers
from torch_impl.communication.rendezvous import Group, init_process_group
from torch_impl.communication.replica_sums import make_sum_over_ranks
from torch_impl.communication.shared_memory import BucketAverages, open_shared_memory
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.models import build_model, trainable_parameters, use_sparse_gradients
from torch_impl.optimizer import Optimizer
from torch_impl.step import backward, compute_evaluation_sums, evaluate, seed_dropout
from torch_impl.strategies.held_bytes import gather_held_bytes
from torch_impl.strategies.loss_sums import sum_over_ranks
from torch_impl.task import build_task_functions
from torch_impl.training_state import collect_state, load_state

# A communication hook of DDP: averages a bucket of gradients over the ranks. Its first argument is its state.
CommHook = Callable[[Any, dist.GradBucket], Future[torch.Tensor]]
HeldBuckets = list[tuple[dist.GradBucket, Future[torch.Tensor]]]  # waiting buckets, each with its future average


class DDP(Strategy[DdpSettings]):
    """One rank of torch.nn.parallel.DistributedDataParallel.

    `replica` is the DDP module around `model`. Both have the same parameters. Only `replica` reduces gradients.
    """

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
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
        if self.settings.comm_hook == "none":
            use_sparse_gradients(self.model)
        self.model.register_forward_hook(make_dependency_hook(self.model))
        with warnings.catch_warnings():  # torch 2.13 renames broadcast_buffers; torch 2.11 has only this name
            warnings.simplefilter("ignore", FutureWarning)
            self.replica = DistributedDataParallel(
                self.model,
                broadcast_buffers=False,
                bucket_cap_mb=self.settings.bucket_cap_mb,
                gradient_as_bucket_view=self.settings.gradient_as_bucket_view,
                static_graph=self.settings.static_graph,
            )
        state, hook = self._make_comm_hook(self.settings.comm_hook)
        if not self.settings.overlap:
            state, hook = HeldBuckets(), _run_after_backward(state, hook)
        if hook is not default_hooks.allreduce_hook:  # without a hook, DDP does the same in C++
            self.replica.register_comm_hook(state, hook)
        self.optimizer = Optimizer(config, trainable_parameters(self.model))

    def _make_comm_hook(self, name: str) -> tuple[object, CommHook]:
        """Return the state of the hook that averages a bucket, and the hook. name: `strategy.comm_hook`."""
        if name == "powersgd":  # compresses all gradients, as matrices, to rank 1 from step 2 on
            return powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook
        if name == "none" and self.device.type == "cpu":
            memory = open_shared_memory(self.config.cluster.timeout)
            if memory is not None:
                return None, BucketAverages(memory).hook
        hooks = {
            "none": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            # With Gloo, DDP refuses this hook by its name, although Gloo can sum bfloat16. A lambda has another name.
            "bf16": lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket),
        }
        return None, hooks[name]

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
        average_statistics(self.model, dist.all_reduce, self.world_size)
        check_equal_buffers(self.model, dist.all_reduce, self.world_size)
        return collect_state(self.model, self.optimizer)

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


def make_dependency_hook(model: Module) -> Callable[[Module, object, torch.Tensor], torch.Tensor]:
    """Return a forward hook that makes the outputs of the model depend on every trainable parameter.

    DDP waits for the gradients of all these parameters. Without the hook, DDP fails if the loss does not depend on one
    of them, such as a parameter of an auxiliary head.
    """
    parameters = trainable_parameters(model).values()
    embeddings = (module for module in model.modules() if isinstance(module, Embedding | EmbeddingBag))
    sparse = {module.weight for module in embeddings if module.sparse}.intersection(parameters)
    dense = [parameter for parameter in parameters if parameter not in sparse]

    def depend_on_parameters(model: Module, args: object, outputs: torch.Tensor) -> torch.Tensor:
        returned: torch.Tensor = _DependOnParameters.apply(outputs, len(sparse), *sparse, *dense)
        return returned

    return depend_on_parameters


class _DependOnParameters(torch.autograd.Function):
    """Returns the outputs unchanged, and passes an undefined gradient to every parameter.

    An undefined gradient (None) adds nothing to the gradient of a parameter. DDP accepts None except for parameters
    with sparse gradients, which get a sparse gradient without rows.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, outputs: torch.Tensor, sparse_count: int, *parameters: Parameter) -> torch.Tensor:
        ctx.save_for_backward(*parameters[:sparse_count])
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: BackwardCFunction, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = [gradient, None, *map(_make_empty_gradient, ctx.saved_tensors)]
        return *gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients))


def _make_empty_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return a sparse gradient without rows for the parameter of an embedding."""
    indices, rows = torch.empty(1, 0, dtype=torch.int64), parameter.new_empty(0, parameter.shape[1])
    return torch.sparse_coo_tensor(indices, rows, parameter.shape)


def _run_after_backward(state: object, hook: CommHook) -> CommHook:
    """Return a hook that holds every bucket until the last one is ready, when backward ends, and then runs `hook`."""

    def delayed_hook(held: HeldBuckets, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        average: Future[torch.Tensor] = Future()
        held.append((bucket, average))
        if bucket.is_last():
            for held_bucket, held_average in held:
                hook(state, held_bucket).then(partial(_copy_result, held_average))
            held.clear()
        return average

    return delayed_hook


def _copy_result(target: Future[torch.Tensor], finished: Future[torch.Tensor]) -> None:
    target.set_result(finished.value())
