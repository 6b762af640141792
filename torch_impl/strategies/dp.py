"""DataParallel: one process; a step scatters the batch, replicates the model, applies in parallel, gathers the logits.

On GPUs it is torch.nn.DataParallel; without them the same four moves over virtual replicas in threads.
"""

import copy
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import Module

from common.config import Config
from common.data.batches import GlobalBatch
from common.data.plan import shard_bounds
from common.hardware import cores
from common.loop import Evaluation, StepResult
from common.weights import InitialCheckpoint
from torch_impl.batches import to_tensors
from torch_impl.device import peak_memory_bytes, replica_devices
from torch_impl.model import build_model, compute_logits, evaluation_sums, parameters_by_name, summed_loss
from torch_impl.optimizer import Optimizer


class VirtualDataParallel(Module):
    """torch.nn.DataParallel's four moves on the CPU, a thread for each replica."""

    def __init__(self, module: Module, replicas: int) -> None:
        super().__init__()
        self.module = module
        self._structures = [copy.deepcopy(module) for _ in range(replicas)]  # where the copied parameters are put
        threads = max(1, cores() // replicas)
        self._pool = ThreadPoolExecutor(replicas, initializer=torch.set_num_threads, initargs=(threads,))

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        inputs = self._scatter(batch)
        replicas = self._replicate(len(inputs))
        logits = self._parallel_apply(replicas, inputs)
        return torch.cat(logits)  # gather

    def _scatter(self, batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        rows = len(batch["input_ids"])
        sizes = np.diff(shard_bounds(rows, min(rows, len(self._structures)))).tolist()
        parts = {name: tensor.split(sizes) for name, tensor in batch.items()}
        return [{name: part[index] for name, part in parts.items()} for index in range(len(sizes))]

    def _replicate(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Copies of the parameters; autograd sums their gradients into the originals."""
        return [{name: p.clone() for name, p in self.module.named_parameters()} for _ in range(count)]

    def _parallel_apply(
        self, replicas: list[dict[str, torch.Tensor]], inputs: list[dict[str, torch.Tensor]]
    ) -> list[torch.Tensor]:
        grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")  # both are a thread's own

        def apply(structure: Module, replica: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
            structure.train(self.training)
            with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits: torch.Tensor = functional_call(structure, replica, kwargs=batch)
                return logits

        return list(self._pool.map(apply, self._structures, replicas, inputs))


class DP:
    is_chief = True

    def __init__(self, config: Config, initial: InitialCheckpoint) -> None:
        assert config.strategy.replicas is not None
        self.world_size = config.strategy.replicas
        self.devices = replica_devices(self.world_size)
        self.precision = config.train.precision
        self.model = build_model(config, initial).to(self.devices[0])
        self.replicas: Module = VirtualDataParallel(self.model, self.world_size)
        if self.devices[0].type == "cuda":
            self.replicas = torch.nn.DataParallel(self.model, self.devices)
        self.optimizer = Optimizer(config, self.model)

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.replicas.train()
        for batch in batches:
            whole = to_tensors(batch.shard(0, 1), self.devices[0])
            logits = compute_logits(self.replicas, whole, self.precision)
            loss = summed_loss(logits, whole) / batch.size
            loss.backward()
            grad_norm = self.optimizer.update(batch.step)
            yield StepResult(batch, loss.detach(), grad_norm)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self.replicas.eval()
        sums, count = torch.zeros(2, dtype=torch.float64, device=self.devices[0]), 0
        for batch in batches:
            whole = to_tensors(batch.shard(0, 1), self.devices[0])
            logits = compute_logits(self.replicas, whole, self.precision)
            sums += evaluation_sums(logits, whole)
            count += batch.size
        summed_loss, right = sums.tolist()
        return Evaluation(summed_loss, right, count)

    def state(self) -> dict[str, np.ndarray]:
        return parameters_by_name(self.model)

    def report(self) -> dict[str, Any]:
        return {"peak_memory_bytes": peak_memory_bytes(self.devices)}
