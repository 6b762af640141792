"""DistributedDataParallel: a process for each replica; gradients are all-reduced in buckets while backward runs."""

import atexit
import os
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from common.config import Config
from common.data.batches import GlobalBatch
from common.loop import Evaluation, StepResult
from common.weights import InitialCheckpoint
from torch_impl.batches import to_tensors
from torch_impl.device import peak_memory_bytes, replica_devices
from torch_impl.model import build_model, compute_logits, evaluation_sums, parameters_by_name, summed_loss
from torch_impl.optimizer import Optimizer


class DDP:
    def __init__(self, config: Config, initial: InitialCheckpoint) -> None:
        local_rank = int(os.environ["LOCAL_RANK"])
        self.device = replica_devices(local_rank + 1)[local_rank]
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.is_chief = self.rank == 0
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            os.environ.get("LOCKSTEP_RENDEZVOUS", "env://"),
            rank=self.rank,
            world_size=self.world_size,
        )
        atexit.register(dist.destroy_process_group)  # its threads must be joined before the interpreter goes
        self.precision = config.train.precision
        self.model = build_model(config, initial).to(self.device)
        with warnings.catch_warnings():  # torch 2.13 renames broadcast_buffers, which 2.11 knows under this name only
            warnings.simplefilter("ignore", FutureWarning)
            self.replica = DistributedDataParallel(self.model, broadcast_buffers=False, gradient_as_bucket_view=True)
        self.optimizer = Optimizer(config, self.model)

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.replica.train()
        for batch in batches:
            shard = to_tensors(batch.shard(self.rank, self.world_size), self.device)
            logits = compute_logits(self.replica, shard, self.precision)
            loss = summed_loss(logits, shard) / batch.size
            (loss * self.world_size).backward()  # DDP averages the gradients: times world_size, the average is the sum
            grad_norm = self.optimizer.update(batch.step)
            loss = loss.detach()
            dist.all_reduce(loss)
            yield StepResult(batch, loss, grad_norm)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self.model.eval()
        sums, count = torch.zeros(2, dtype=torch.float64, device=self.device), 0
        for batch in batches:
            shard = to_tensors(batch.shard(self.rank, self.world_size), self.device)
            logits = compute_logits(self.model, shard, self.precision)
            sums += evaluation_sums(logits, shard)
            count += batch.size
        dist.all_reduce(sums)
        summed_loss, right = sums.tolist()
        return Evaluation(summed_loss, right, count)

    def state(self) -> dict[str, np.ndarray]:
        return parameters_by_name(self.model)

    def peak_memory_bytes(self) -> list[int]:
        peaks: list[list[int]] = [[]] * self.world_size
        dist.all_gather_object(peaks, peak_memory_bytes([self.device]))
        return [peak for rank in peaks for peak in rank]
