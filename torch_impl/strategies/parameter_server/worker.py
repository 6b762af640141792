"""A worker: it reads the parameters, computes gradients of what the coordinator dispatches, and sends them."""

import torch
from torch.nn.utils import get_total_norm

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.run.prepare import Prepared
from common.training.planned_batches import find_batch
from torch_impl.batches import to_tensors
from torch_impl.communication.connection import connect, receive, send
from torch_impl.communication.rendezvous import Group
from torch_impl.device import peak_memory_bytes, replica_devices
from torch_impl.models import build_model, trained
from torch_impl.step import backward, seed_dropout
from torch_impl.strategies.parameter_server.messages import (
    REQUEST,
    ROW,
    UPDATE,
    connect_to_servers,
    flat,
    read_parameters,
    request,
    shards_of,
)
from torch_impl.task import build_losses


def work(config: Config, prepared: Prepared, group: Group) -> None:
    """Compute the gradients of the batches that the coordinator dispatches, until it ends."""
    settings = config.strategy
    assert isinstance(settings, ParameterServerSettings) and group.store is not None
    workers, index = settings.world_size, group.rank - settings.other_processes
    device = replica_devices(workers)[index]
    model = build_model(config, prepared.initial).to(device)
    task = build_losses(config.task)
    model.train()
    parameters = trained(model)
    servers = connect_to_servers(group.store, settings.server_count, group.rank, config.cluster.timeout)
    shards = shards_of(parameters, len(servers))
    coordinator = connect(group.store, 0, group.rank, config.cluster.timeout)
    coordinator.settimeout(None)  # it evaluates for as long as it takes
    send(coordinator, torch.tensor(peak_memory_bytes([device]), dtype=torch.float64))
    while True:
        try:
            message = receive(coordinator, torch.empty(REQUEST, dtype=torch.float64)).tolist()
        except OSError:
            return
        step, part = int(message[1]), int(message[2])
        read = read_parameters(servers, shards)
        batch = find_batch(config, prepared.cache.train, step)
        if settings.synchronous:
            arrays = batch.shard(part, workers)
        else:
            batch = batch.parts(settings.updates_per_batch)[part]
            arrays = batch.shard(0, 1)
        seed_dropout(config, step, part)
        loss = backward(model, task, to_tensors(arrays, device), batch.weight, config.train.precision)
        norm = get_total_norm([parameter.grad for parameter in parameters.values() if parameter.grad is not None])
        for server, shard in zip(servers, shards, strict=True):
            request(server, UPDATE, step, part, float(loss), float(norm), read, index)
            send(server, flat(parameter.grad for parameter in shard.values()))
        model.zero_grad()
        row, *_ = [receive(server, torch.empty(ROW, dtype=torch.float64)) for server in servers]
        send(coordinator, torch.cat([row, torch.tensor(peak_memory_bytes([device]), dtype=torch.float64)]))
