"""The batches, the model and the loss of the contestants that train a user's own model."""

import argparse
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from common.map.factory import call_factory

Inputs: TypeAlias = tf.Tensor | dict[str, tf.Tensor]  # the only input of the model, or its inputs by name


def make_batches(args: argparse.Namespace) -> tf.data.Dataset:
    """Return endless global batches of inputs and labels in random order.

    The file pads inputs of different lengths to the longest example; a batch keeps what its longest example needs.
    """
    inputs = {name: array for name, array in np.load(args.data).items() if name != "labels"}
    labels = np.load(args.data)["labels"]

    def trim(batch: dict[str, tf.Tensor], labels: tf.Tensor) -> tuple[Inputs, tf.Tensor]:
        for name in args.ragged:
            length = tf.reduce_max(tf.reduce_sum(batch[f"{name}_mask"], 1))
            batch |= {key: batch[key][:, :length] for key in (name, f"{name}_mask")}
        return (batch if len(batch) > 1 else next(iter(batch.values()))), labels

    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).cache().shuffle(len(labels), args.seed).repeat()
    return dataset.batch(args.global_batch_size, drop_remainder=True).map(trim).prefetch(tf.data.AUTOTUNE)


def build_model(args: argparse.Namespace, dataset: tf.data.Dataset) -> keras.Model:
    """Return the user's model. Call it once, since a model may create its variables in its first call."""
    if args.precision == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    model: keras.Model = call_factory("model.tf", args.model, args.arguments)
    inputs, _ = dataset.element_spec
    model(tf.nest.map_structure(lambda spec: tf.ones([1, *(size or 1 for size in spec.shape[1:])], spec.dtype), inputs))
    return model


def build_loss(args: argparse.Namespace, reduction: str | None) -> keras.losses.Loss:
    """Return the squared error of numbers, or the cross-entropy of classes. reduction: as Keras's losses take it."""
    if args.loss == "mse":
        return keras.losses.MeanSquaredError(reduction)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
