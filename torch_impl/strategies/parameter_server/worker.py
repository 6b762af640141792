"""A worker, which computes the gradients of the coordinator's batches and sends them to the servers."""

from dataclasses import asdict

from torch.nn.utils import get_total_norm

from common.config.strategies import ParameterServerSettings
from common.run.context import RunContext
from common.training.planned_batches import find_batch
from common.training.strategy import require_settings
from torch_impl.batches import to_tensors
from torch_impl.communication.connection import connect
from torch_impl.communication.rendezvous import Group
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.models import build_model, trainable_parameters
from torch_impl.step import backward, collect_gradients, seed_dropout
from torch_impl.strategies.parameter_server.messages import (
    AppliedUpdate,
    ApplyGradient,
    ComputeGradient,
    WorkerJoined,
    WorkerResult,
    receive_message,
    send_message,
)
from torch_impl.strategies.parameter_server.shards import (
    assign_to_servers,
    connect_to_servers,
    read_parameters,
    send_flat,
)
from torch_impl.task import build_task_functions


def work(context: RunContext, group: Group) -> None:
    """Compute the gradients of the batches that the coordinator dispatches, until the coordinator ends."""
    config = context.config
    settings = require_settings(config.strategy, ParameterServerSettings)
    assert group.store is not None
    first_worker_rank = settings.other_processes  # the coordinator and the servers have the lower ranks
    workers, index = settings.world_size, group.rank - first_worker_rank
    device = select_replica_devices(workers, config.train.device)[index]
    model = build_model(config, context.inputs.initial).to(device)
    task = build_task_functions(config.task, context.inputs.initial.hf_config)
    model.train()
    parameters = trainable_parameters(model)
    servers = connect_to_servers(group.store, settings.server_count, group.rank, config.cluster.timeout)
    shards = assign_to_servers(parameters, len(servers))
    coordinator = connect(group.store, 0, group.rank, config.cluster.timeout)
    coordinator.settimeout(None)  # an evaluation on the coordinator may take any time
    send_message(coordinator, WorkerJoined(measure_peak_memory([device])[0]))
    while True:
        try:
            request = receive_message(coordinator, ComputeGradient)
        except OSError:
            return
        version = read_parameters(servers, shards)
        batch = find_batch(config, context.inputs.cache.train, request.step)
        if settings.synchronous:  # the global batch makes one update, and each worker has a shard of it
            arrays = batch.shard(request.part, workers)
        else:  # each part of the global batch makes an update
            batch = batch.divide(settings.updates_per_batch)[request.part]
            arrays = batch.shard(rank=0, world_size=1)
        seed_dropout(config, request.step, request.part)
        loss = backward(model, task, to_tensors(arrays, device), batch.weight, config.train.precision)
        norm = get_total_norm(collect_gradients(parameters.values()))
        update = ApplyGradient(request.step, request.part, float(loss.sum()), float(norm), version, index)
        for server, shard in zip(servers, shards, strict=True):
            send_message(server, update)
            send_flat(server, collect_gradients(shard.values()))
        model.zero_grad()
        applied, *_ = [receive_message(server, AppliedUpdate) for server in servers]
        send_message(coordinator, WorkerResult(**asdict(applied), peak_memory_bytes=measure_peak_memory([device])[0]))
