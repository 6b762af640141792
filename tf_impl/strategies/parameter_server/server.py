"""A worker or a parameter server: TensorFlow's server, which does what the coordinator sends."""

import os
import socket
import time

import tensorflow as tf

from common.config.schema import Config
from common.hardware import count_cores
from common.training.stop import Stop
from tf_impl.communication.rendezvous import rendezvous


def serve(config: Config) -> int:
    """Be a worker or a parameter server until the coordinator ends. Returns the exit code of this process."""
    stop = Stop()
    group = rendezvous(config.cluster.timeout, {})  # the coordinator sends it all that it computes
    resolver = group.resolver
    assert resolver is not None
    settings = tf.compat.v1.ConfigProto(  # with fewer threads between operations a cluster on two cores can hang
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
    seen = misses = 0
    alone = group.channel is None
    while misses < (3 if seen else config.cluster.timeout) and not (alone and stop.signum is not None):
        time.sleep(1)
        present = _listens(coordinator)
        seen, misses = seen + present, 0 if present else misses + 1
    return 0 if stop.signum is None else 128 + stop.signum


def _listens(address: str) -> bool:
    """Whether a server listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 1).close()
    except OSError:
        return False
    return True
