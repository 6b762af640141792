"""The strategy, batches, model and callback of the contestants in TensorFlow, as users of KerasHub write them."""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras_hub.models import BertBackbone, BertTextClassifier
from transformers import AutoTokenizer
from typing_extensions import override

from common.bench.contestant_task import RowWriter, count_classes, read_examples


class RowCallback(keras.callbacks.Callback):
    """Callback of `fit` that writes a row after each step. Without the batch, it counts the mean tokens of a batch."""

    def __init__(self, args: argparse.Namespace, mean_tokens: float) -> None:
        """Prepare to write rows. mean_tokens: the mean tokens of an example."""
        super().__init__()
        self.args, self.tokens = args, round(mean_tokens * args.global_batch_size)

    @override
    def on_train_begin(self, logs: dict | None = None) -> None:
        self.writer = RowWriter(self.args)

    @override
    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.writer.write(self.tokens)


def create_strategy(replicas: int) -> tf.distribute.MirroredStrategy:
    """Return a strategy with a replica on each GPU, or on each of as many logical CPU devices."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"{'GPU' if gpus else 'CPU'}:{index}" for index in range(replicas)])


def make_batches(args: argparse.Namespace) -> tuple[tf.data.Dataset, float]:
    """Return endless global batches in random order, and the mean tokens of an example.

    Each batch is padded to its longest example.
    """
    examples = read_examples(args)
    premises, hypotheses = [pair["premise"] for pair in examples], [pair["hypothesis"] for pair in examples]
    tokenizer = AutoTokenizer.from_pretrained(args.weights)
    encoded = tokenizer(premises, hypotheses, truncation=True, max_length=args.max_length)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    inputs = {
        name: tf.RaggedTensor.from_row_lengths(np.concatenate(encoded[hf_name]).astype(np.int32), lengths)
        for name, hf_name in names.items()
    }
    labels = np.array([pair["label"] for pair in examples], np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).cache().shuffle(len(examples), args.seed).repeat()
    dataset = dataset.ragged_batch(args.global_batch_size, drop_remainder=True).map(
        lambda batch, labels: ({name: ragged.to_tensor() for name, ragged in batch.items()}, labels)
    )
    return dataset.prefetch(tf.data.AUTOTUNE), sum(lengths) / len(lengths)


def build_model(args: argparse.Namespace) -> keras.Model:
    """Return the classifier of KerasHub, which has the tanh approximation of GELU."""
    if args.precision == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = BertBackbone.from_preset(str(args.weights), dropout=0.0)
    return BertTextClassifier(backbone, num_classes=count_classes(args), dropout=0.0)
