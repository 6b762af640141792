"""A worker or a parameter server: a server of TensorFlow, which runs the steps that the coordinator sends.

The server never stops by itself. This process ends when the coordinator no longer listens, or when the run is stopped.
"""

import os
import socket
import time

import tensorflow as tf

from common.config.schema import Config
from common.hardware import count_cores
from common.training.stop import Stop
from tf_impl.communication.rendezvous import rendezvous
from tf_impl.device import select_replica_devices


def serve(config: Config) -> int:
    """Serve as a worker or a parameter server until the coordinator ends. Return the exit code of this process."""
    stop = Stop()
    group = rendezvous(config.cluster.timeout, {})  # no settings to compare: the coordinator sends all computations
    resolver = group.resolver
    assert resolver is not None
    if resolver.task_type == "worker":
        select_replica_devices(1, config.train.device)
    settings = tf.compat.v1.ConfigProto(  # with fewer inter-op threads a cluster on two cores can hang
        inter_op_parallelism_threads=max(4, count_cores()),
        intra_op_parallelism_threads=int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")),
    )
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc", config=settings
    )
    assert server is not None
    stop.listen()
    if group.channel is not None:
        group.channel.attach(stop)
    (coordinator,) = resolver.cluster_spec().as_dict()["chief"]
    was_seen, misses = False, 0  # misses: consecutive polls, one per second, without a listening coordinator
    while misses < (3 if was_seen else config.cluster.timeout):
        if group.channel is None and stop.signum is not None:  # without a channel, nobody decides when to stop
            break
        time.sleep(1)
        if _is_listening(coordinator):
            was_seen, misses = True, 0
        else:
            misses += 1
    return 0 if stop.signum is None else 128 + stop.signum


def _is_listening(address: str) -> bool:
    """Check whether a server listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 1).close()
    except OSError:
        return False
    return True
