"""Data-parallel training by hand: a process for each replica, which sums gradients with communication/allreduce.py."""

import atexit
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch.profiler import record_function
from typing_extensions import override

from common.config.strategies import AllReduceSettings
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from torch_impl.batch_norm import average_statistics, synchronize_batch_norm
from torch_impl.batches import to_tensors
from torch_impl.changing_buffers import average_buffers, check_equal_buffers
from torch_impl.communication.allreduce import Traffic, all_reduce
from torch_impl.communication.rendezvous import Group, init_process_group
from torch_impl.communication.replica_sums import make_sum_over_ranks
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.models import build_model, trainable_parameters
from torch_impl.optimizer import Optimizer
from torch_impl.step import backward, collect_gradients, compute_evaluation_sums, evaluate, seed_dropout
from torch_impl.strategies.loss_sums import sum_over_ranks
from torch_impl.task import build_task_functions
from torch_impl.training_state import collect_state, load_state


class AllReduce(Strategy[AllReduceSettings]):
    """One rank, which sums gradients with the other ranks, bucket by bucket."""

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        local_rank = int(os.environ["LOCAL_RANK"])
        self.device = select_replica_devices(local_rank + 1, config.train.device)[local_rank]
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        init_process_group(group, config.cluster.timeout, "nccl" if self.device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)  # the group's threads must end before the interpreter does
        dist.barrier()  # NCCL's first operation requires all ranks, but a message has only two
        self.precision = config.train.precision
        self.model = build_model(config, context.inputs.initial).to(self.device)
        make_sum_function = partial(make_sum_over_ranks, config.cluster.timeout)
        self.task = build_task_functions(config.task, context.inputs.initial.hf_config, make_sum_function)
        if config.model.has_global_batch_norm:
            synchronize_batch_norm(self.model, make_sum_function())
        buckets = make_buckets(list(trainable_parameters(self.model).values()), self.settings.bucket_cap_mb)
        self.reducer = Reducer(buckets, self.settings.algorithm, self.settings.overlap)
        self.optimizer = Optimizer(config, trainable_parameters(self.model))

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            seed_dropout(self.config, batch.step, self.rank)
            shard = to_tensors(batch.shard(self.rank, self.world_size), self.device)
            with self.reducer.no_sync():
                losses = [
                    backward(self.model, self.task, [micro_batch], batch.weight, self.precision)
                    for micro_batch in shard[:-1]
                ]
            losses.append(backward(self.model, self.task, shard[-1:], batch.weight, self.precision))
            self.reducer.finish()
            loss = torch.stack(losses).sum(0)
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
        """Add `messages_sent` and `bytes_sent`, which count what each rank has sent for gradients in all steps.

        Both are None for algorithm=native, which does not report its traffic.
        """
        traffic = self.reducer.traffic
        rows: list[tuple[int, int, int]] = [(0, 0, 0)] * self.world_size
        dist.all_gather_object(rows, (*measure_peak_memory([self.device]), traffic.messages, traffic.bytes))
        peaks, messages, sent = (list(column) for column in zip(*rows, strict=True))
        is_counted = self.settings.algorithm != "native"
        return {
            "peak_memory_bytes": peaks,
            "messages_sent": messages if is_counted else None,
            "bytes_sent": sent if is_counted else None,
        }


def make_buckets(parameters: list[Parameter], cap_mb: float | None) -> list[list[Parameter]]:
    """Divide the parameters into buckets, in reverse order: about the order in which backward finishes their gradients.

    A bucket holds up to `cap_mb` MiB, and at least one parameter. If `cap_mb` is None, a bucket holds one parameter.
    """
    cap = 0.0 if cap_mb is None else cap_mb * 2**20  # bytes
    buckets: list[list[Parameter]] = []
    filled = 0.0  # bytes in the last bucket
    for parameter in reversed(parameters):
        if not buckets or filled + parameter.nbytes > cap:
            buckets.append([])
            filled = 0.0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


class Reducer:
    """Sums the gradients of a backward pass over all ranks, bucket by bucket.

    One thread reduces the buckets in the order of the list. So all ranks reduce in the same order, no matter when a
    bucket becomes ready.

    Args:
        buckets: the parameters, in lists whose gradients are sent together.
        algorithm: a key of ALGORITHMS in communication/allreduce.py.
        overlap: whether to reduce while backward runs; otherwise `finish` reduces everything.
    """

    def __init__(self, buckets: list[list[Parameter]], algorithm: str, overlap: bool) -> None:
        self.buckets, self.algorithm = buckets, algorithm
        self.traffic = Traffic()
        self._thread = ThreadPoolExecutor(1)
        self._paused = False
        self._start_step()
        if overlap:
            for index, bucket in enumerate(buckets):
                for parameter in bucket:
                    parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))

    def _start_step(self) -> None:
        self._missing = [len(bucket) for bucket in self.buckets]  # number of unfinished gradients of each bucket
        self._launched: list[Future[None]] = []  # the reductions that have started, in the order of the buckets

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of the body without a reduction, as DDP's no_sync does."""
        self._paused = True
        yield
        self._paused = False

    def _on_gradient(self, index: int, parameter: torch.Tensor) -> None:
        """Start to reduce the buckets that are complete after a gradient of bucket `index`."""
        if self._paused:
            return
        self._missing[index] -= 1
        while len(self._launched) < len(self.buckets) and not self._missing[len(self._launched)]:
            self._launch_next()

    def _launch_next(self) -> None:
        bucket = self.buckets[len(self._launched)]
        self._launched.append(self._thread.submit(self._reduce, bucket))

    @record_function("reduce")
    def _reduce(self, bucket: list[Parameter]) -> None:
        gradients = collect_gradients(bucket)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        all_reduce(flat, self.algorithm, self.traffic)
        flat_sums = flat.split([gradient.numel() for gradient in gradients])
        for gradient, flat_sum in zip(gradients, flat_sums, strict=True):
            gradient.copy_(flat_sum.view_as(gradient))

    def finish(self) -> None:
        """Reduce the remaining buckets after backward, and wait for all buckets. Raise the error of the thread, if any.

        A bucket remains if its reduction may not overlap, or if backward computed no gradient for a parameter.
        """
        while len(self._launched) < len(self.buckets):
            self._launch_next()
        try:
            for reduction in self._launched:
                reduction.result()
        except BaseException:
            self._thread.shutdown(wait=False, cancel_futures=True)  # the other ranks no longer answer
            raise
        self._start_step()
