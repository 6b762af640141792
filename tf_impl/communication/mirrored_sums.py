"""Sums over the replicas of a strategy."""

from typing import TypeAlias

import tensorflow as tf

SUM = tf.distribute.ReduceOp.SUM
# One value for each replica. At run time it is a container of tensors, which TensorFlow does not type.
PerReplica: TypeAlias = tf.Tensor | tf.IndexedSlices


def sum_over_replicas(values: list[PerReplica]) -> list[PerReplica]:
    """Return the sum of every value over the replicas. Call it in a function that `tf.distribute` runs on each replica.

    The replicas of MirroredStrategy share memory on a CPU, and sum there.
    """
    replica = tf.distribute.get_replica_context()
    strategy = replica.strategy
    if type(strategy) is tf.distribute.MirroredStrategy and "CPU" in strategy.extended.worker_devices[0]:
        return list(replica.merge_call(_sum_in_memory, args=(values,)))
    return list(replica.all_reduce(SUM, values))


def _sum_in_memory(strategy: tf.distribute.Strategy, values: list[PerReplica]) -> list[PerReplica]:
    """Sum every value as soon as all replicas have computed it.

    An all-reduce would wait for many values and pack them, or need a collective operation for each value.
    """
    with tf.name_scope("AllReduce"):  # the name that a profile shows
        pairs = [(value, value) for value in values]  # the value to sum, and one that names the devices for the sum
        return tf.distribute.ReductionToOneDevice().batch_reduce(SUM, pairs)
