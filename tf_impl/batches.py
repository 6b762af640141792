"""Shards of a global batch as tensors."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.schema import Config
from common.data.batches import Arrays, Split
from common.training.planned_batches import find_batch, has_equal_batches, validation_batches
from tf_impl.compilation import round_up_shapes

# Number of training steps from which it pays to compile the step once more for a smaller last batch of an epoch
STEPS_TO_COMPILE_TWICE = 100


def to_tensors(shard: list[Arrays], compiled: bool = False) -> list[dict[str, tf.Tensor]]:
    """Convert the micro-batches of a shard to tensors.

    Args:
        shard: The arrays of each micro-batch by name, as `GlobalBatch.shard` returns them.
        compiled: Whether XLA compiles the model; shapes are then rounded up, so that there are few of them.
    """
    if compiled:
        shard = [round_up_shapes(arrays) for arrays in shard]
    return [{name: tf.convert_to_tensor(array) for name, array in arrays.items()} for arrays in shard]


def build_input_signature(
    config: Config, split: Split, rank: int | None = None, world_size: int = 1, evaluates: bool = False
) -> list[dict[str, tf.TensorSpec]]:
    """Return the `input_signature` of a tf.function that takes a shard of this split.

    An axis that has the same size in all examples gets this size, because many models read `x.shape[1]`. All other
    axes have any length.

    Args:
        config: The config of the run.
        split: The split.
        rank: The replica whose shards the function takes. None: shards have any number of examples. If all global
            batches have the same size, the number of examples in a shard is fixed. In a long training run, it is fixed
            too: most shards have this number of examples, and `SizedStep` takes the other shards.
        world_size: The number of replicas.
        evaluates: Whether the function takes the shards of an evaluation, which may ask for predictions.
    """
    # The first shard stands for all: the names and types of the arrays are always the same.
    batch = next(validation_batches(config, split)) if evaluates else find_batch(config, split, number=1)
    shard = batch.shard(rank or 0, world_size)
    compiles_twice = not evaluates and config.train.steps >= STEPS_TO_COMPILE_TWICE
    is_fixed = rank is not None and (compiles_twice or has_equal_batches(config, split))
    shapes = dict(split.example_shapes)
    if shapes:
        shapes["weights"] = shard[0]["weights"].shape[1:]
    return [
        {name: _build_spec(array, shapes.get(name), is_fixed) for name, array in arrays.items()} for arrays in shard
    ]


def _build_spec(array: np.ndarray, example_shape: tuple[int | None, ...] | None, is_fixed: bool) -> tf.TensorSpec:
    """Return the type of an array. The shape of an example is fixed; the number of examples only with `is_fixed`."""
    if example_shape is None:
        return tf.TensorSpec([None] * array.ndim, array.dtype)
    return tf.TensorSpec([len(array) if is_fixed else None, *example_shape], array.dtype)


class SizedStep:
    """A training step that TensorFlow compiles for global batches of the usual size, and again for a smaller one.

    If the number of examples is known, shapes are constants of the graph. A loop over the tokens of a text then has
    half as many operations.
    """

    def __init__(self, step: Callable[..., Any], shards: Sequence[object], *others: tf.TensorSpec) -> None:
        """Prepare to compile a step. shards: the type of its first argument; others: the types of its others."""
        self._usual_size = _count_examples(shards)
        self._usual = tf.function(step, [shards, *others])
        self._smaller = tf.function(step, [tf.nest.map_structure(_open_first_axis, shards), *others])

    def __call__(self, shards: Sequence[object], *others: object) -> Any:  # noqa: ANN401  the result of the step
        """Make a step. shards: the shards of all replicas, or the micro-batches of the only shard."""
        step = self._usual if _count_examples(shards) == self._usual_size else self._smaller
        return step(shards, *others)


def _count_examples(shards: Sequence[Any]) -> list[int | None]:
    """Return the number of examples of each micro-batch of one or several shards; None: not fixed."""
    micro_batches = shards if isinstance(shards[0], dict) else itertools.chain(*shards)
    return [micro_batch["weights"].shape[0] for micro_batch in micro_batches]


def _open_first_axis(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def select_replica_shard(shards: list[list[dict[str, tf.Tensor]]]) -> list[dict[str, tf.Tensor]]:
    """Return the shard of the current replica. Call it in a function that `tf.distribute` runs on every replica."""
    return shards[int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))]
