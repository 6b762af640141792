"""Parameter servers by hand, on point-to-point messages.

The servers hold the parameters; a coordinator hands out batches to workers, which read the parameters, compute
gradients and send them to be applied, without waiting for each other. Rank 0 is the coordinator, then come the servers,
then the workers. torch.distributed.rpc would be the other way: PyTorch keeps it, and TensorPipe, its only transport, in
maintenance mode; Gloo's messages stay, as DDP needs Gloo.
"""

import atexit
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import Module, Parameter
from torch.nn.utils import get_total_norm

from common.checkpoint import Checkpoint, State, slot_names
from common.config import Config
from common.data.batches import GlobalBatch, Split
from common.hand_out import HandOut, find_batch
from common.hardware import cores
from common.hosts import must_agree
from common.loop import Evaluation, StepResult
from common.start import find_start
from common.weights import InitialCheckpoint
from torch_impl.batches import to_tensors
from torch_impl.device import peak_memory_bytes, replica_devices
from torch_impl.group import join_group
from torch_impl.model import (
    build_model,
    compute_logits,
    evaluation_sums,
    parameters_by_name,
    seed_dropout,
    summed_loss,
)
from torch_impl.optimizer import Optimizer

READ, UPDATE, SLOTS, REPORT, STOP = range(5)  # kinds of requests, float64 [kind, batch, part, gradient norm]
REQUEST, PAYLOAD, ANSWER = range(3)  # tags


class ParameterServer:
    """The coordinator. Workers and servers run `serve`."""

    is_chief = True

    def __init__(self, config: Config, initial: InitialCheckpoint) -> None:
        self.config, self.world_size = config, config.strategy.workers
        join_group(config.cluster.timeout, must_agree(config, initial))
        atexit.register(self._stop)
        self.servers, self.workers = _ranks(config)
        dist.new_group(self.servers)
        torch.set_num_threads(cores())  # it computes while the workers wait
        self.device = replica_devices(1)[0]
        self.model = build_model(config, initial).to(self.device)
        self.shards = _shards(dict(self.model.named_parameters()), len(self.servers))

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        if self.config.strategy.max_staleness == 0:
            return self._train_synchronously(batches)
        return self._train_asynchronously(batches)

    def _train_asynchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        strategy = self.config.strategy
        at_once = 2 * self.world_size  # the next batch waits where the worker is: none idles
        hand_out = HandOut(batches, strategy.updates_per_batch, at_once, strategy.max_staleness)
        given: dict[int, list[GlobalBatch]] = {worker: [] for worker in self.workers}  # in the order of their results
        while True:
            while (batch := hand_out.take()) is not None:
                worker = min(given, key=lambda rank: len(given[rank]))
                _request(worker, UPDATE, batch.step, batch.part)
                given[worker].append(batch)
            if not hand_out.under_way:
                return
            result = torch.empty(3, dtype=torch.float64)
            worker = dist.recv(result, tag=ANSWER)
            batch = given[worker].pop(0)
            loss, grad_norm, staleness = result.tolist()
            hand_out.finish(batch)
            yield StepResult(batch, loss, grad_norm, int(staleness), self.workers.index(worker))

    def _train_synchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """The workers' shards of one global batch make one update; each server sums their gradients in order."""
        for batch in batches:
            for part, worker in enumerate(self.workers):
                _request(worker, UPDATE, batch.step, part)
            results = torch.empty(self.world_size, 3, dtype=torch.float64)
            for result, worker in zip(results, self.workers, strict=True):
                dist.recv(result, worker, tag=ANSWER)
            yield StepResult(batch, results[:, 0].sum(), results[0, 1], staleness=0)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        _read(self.servers, self.shards)
        self.model.eval()
        sums, count = torch.zeros(2, dtype=torch.float64, device=self.device), 0
        for batch in batches:
            shard = to_tensors(batch.shard(0, 1), self.device)
            logits = compute_logits(self.model, shard, self.config.train.precision)
            sums += evaluation_sums(logits, shard)
            count += batch.size
        summed_loss, right = sums.tolist()
        return Evaluation(summed_loss, right, count)

    def state(self) -> State:
        _read(self.servers, self.shards)
        slots: dict[str, np.ndarray] = {}
        for server, shard in zip(self.servers, self.shards, strict=True):
            _request(server, SLOTS)
            for slot in slot_names(self.config):
                flat = torch.empty_like(_flat(shard.values()))
                dist.recv(flat, server, tag=PAYLOAD)
                parts = _parts(flat, shard.values())
                slots |= {f"{slot}.{name}": part.numpy() for name, part in zip(shard, parts, strict=True)}
        return State(parameters_by_name(self.model), slots)

    def load(self, checkpoint: Checkpoint) -> None:
        """The servers have done it: see `serve`."""

    def report(self) -> dict[str, Any]:
        answer = torch.empty(3, dtype=torch.float64)
        peaks = []
        for worker in self.workers:
            _request(worker, REPORT)
            dist.recv(answer, worker, tag=ANSWER)
            peaks.append(int(answer[0]))
        return {"peak_memory_bytes": peaks, "version": _read(self.servers, self.shards)}

    def _stop(self) -> None:
        with suppress(RuntimeError):  # whoever has gone already
            for rank in (*self.workers, *self.servers):
                _request(rank, STOP)
        dist.destroy_process_group()


def serve(config: Config) -> int:
    """Be a worker or a parameter server until the coordinator says stop. Returns the exit code of this process."""
    cache, initial, checkpoint = find_start(config)
    rank, _ = join_group(config.cluster.timeout, must_agree(config, initial))
    atexit.register(dist.destroy_process_group)
    servers, workers = _ranks(config)
    group = dist.new_group(servers)
    if rank in servers:  # it knows its parameters, and no model
        dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        state = checkpoint.load() if checkpoint else State(initial.weights(), {})
        named = {name: Parameter(torch.from_numpy(array).to(dtype)) for name, array in state.parameters.items()}
        shard = _shards(named, len(servers))[servers.index(rank)]
        optimizer = Optimizer(config, shard)
        if checkpoint is not None:
            optimizer.load(state.slots, checkpoint.position)
        _serve_parameters(config, shard, optimizer, checkpoint.position.step if checkpoint else 0, group)
    else:
        device = replica_devices(len(workers))[workers.index(rank)]
        _work(config, build_model(config, initial).to(device), device, cache.train)
    return 0


def _serve_parameters(
    config: Config, named: dict[str, Parameter], optimizer: Optimizer, version: int, group: dist.ProcessGroup | None
) -> None:
    parameters = list(named.values())
    synchronous = config.strategy.max_staleness == 0
    held: dict[int, torch.Tensor] = {}  # gradients by worker, until all are there
    norm = torch.zeros((), dtype=torch.float64)
    while True:
        request = torch.empty(4, dtype=torch.float64)
        sender = dist.recv(request, tag=REQUEST)
        kind, step, _, norm_of_all = request.tolist()
        if kind == STOP:
            return
        if kind == READ:
            dist.send(torch.tensor([version], dtype=torch.float64), sender, tag=ANSWER)
            dist.send(_flat(parameters), sender, tag=PAYLOAD)
            continue
        if kind == SLOTS:
            slots = optimizer.slots()
            for slot in slot_names(config):
                dist.send(_flat(torch.from_numpy(slots[f"{slot}.{name}"]) for name in named), sender, tag=PAYLOAD)
            continue
        gradient = torch.empty_like(_flat(parameters))
        dist.recv(gradient, sender, tag=PAYLOAD)
        held[sender] = gradient
        if synchronous and len(held) < config.strategy.workers:
            continue
        summed = torch.stack([held[worker] for worker in sorted(held)]).sum(0) if synchronous else gradient
        if synchronous:
            norm = summed.double().square().sum()
            dist.all_reduce(norm, group=group)
            norm_of_all = float(norm.sqrt())
        for parameter, part in zip(parameters, _parts(summed, parameters), strict=True):
            parameter.grad = part
        optimizer.update(int(step), torch.tensor(norm_of_all, dtype=summed.dtype))
        for worker in sorted(held):
            dist.send(torch.tensor([version, norm_of_all], dtype=torch.float64), worker, tag=ANSWER)
        version += 1
        held.clear()


def _work(config: Config, model: Module, device: torch.device, split: Split) -> None:
    servers, workers = _ranks(config)
    shards = _shards(dict(model.named_parameters()), len(servers))
    parameters = list(model.parameters())
    synchronous = config.strategy.max_staleness == 0
    model.train()
    request = torch.empty(4, dtype=torch.float64)
    coming = dist.irecv(request, 0, tag=REQUEST)
    while True:
        assert coming is not None
        coming.wait()
        kind, step, part, _ = request.tolist()
        if kind == STOP:
            return
        coming = dist.irecv(request, 0, tag=REQUEST)  # while it computes: the coordinator never waits for a worker
        if kind == REPORT:
            dist.send(torch.tensor([*peak_memory_bytes([device]), 0, 0], dtype=torch.float64), 0, tag=ANSWER)
            continue
        read = _read(servers, shards)
        batch = find_batch(config, split, int(step))
        if synchronous:
            arrays, size = batch.shard(int(part), len(workers)), batch.size
        else:
            batch = batch.parts(config.strategy.updates_per_batch)[int(part)]
            arrays, size = batch.shard(0, 1), batch.size
        tensors = to_tensors(arrays, device)
        seed_dropout(config, int(step), int(part))
        loss = summed_loss(compute_logits(model, tensors, config.train.precision), tensors) / size
        loss.backward()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = get_total_norm(gradients)
        for server, shard in zip(servers, shards, strict=True):
            _request(server, UPDATE, step, part, float(norm))
            dist.send(_flat(parameter.grad for parameter in shard.values()), server, tag=PAYLOAD)
        model.zero_grad()
        answers = torch.empty(len(servers), 2, dtype=torch.float64)
        for answer, server in zip(answers, servers, strict=True):
            dist.recv(answer, server, tag=ANSWER)
        number, summed_norm = answers[0].tolist()
        dist.send(torch.tensor([float(loss.detach()), summed_norm, number - read], dtype=torch.float64), 0, tag=ANSWER)


def _read(servers: list[int], shards: list[dict[str, Parameter]]) -> int:
    """Fetch the parameters from the servers. Returns their version, the updates that the first one had applied."""
    for server in servers:
        _request(server, READ)
    version = torch.empty(1, dtype=torch.float64)
    versions = []
    for server, shard in zip(servers, shards, strict=True):
        flat = torch.empty_like(_flat(shard.values()))
        dist.recv(version, server, tag=ANSWER)
        dist.recv(flat, server, tag=PAYLOAD)
        versions.append(int(version))
        with torch.no_grad():
            for parameter, part in zip(shard.values(), _parts(flat, shard.values()), strict=True):
                parameter.copy_(part)
    return versions[0]


def _request(rank: int, *fields: float) -> None:
    dist.send(torch.tensor([*fields, *[0.0] * (4 - len(fields))], dtype=torch.float64), rank, tag=REQUEST)


def _ranks(config: Config) -> tuple[list[int], list[int]]:
    """The ranks of the servers and of the workers."""
    first = 1 + config.strategy.parameter_servers
    return list(range(1, first)), list(range(first, first + config.strategy.workers))


def _shards(named: dict[str, Parameter], servers: int) -> list[dict[str, Parameter]]:
    """Each server's parameters: the largest first, to the server that has the least."""
    shards: list[dict[str, Parameter]] = [{} for _ in range(servers)]
    for name in sorted(named, key=lambda name: (-named[name].numel(), name)):
        min(shards, key=lambda shard: sum(p.numel() for p in shard.values()))[name] = named[name]
    return shards


def _flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().cpu() for tensor in tensors if tensor is not None])


def _parts(flat: torch.Tensor, parameters: Collection[Parameter]) -> list[torch.Tensor]:
    """Cut a flat tensor into the parameters' shapes."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
