"""What the two contestants in TensorFlow share: replicas, batches and the model of KerasHub's users."""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras_hub.models import BertBackbone, BertTextClassifier
from transformers import AutoTokenizer

from common.bench.contestant_task import number_of_classes, read_examples


def strategy(replicas: int) -> tf.distribute.MirroredStrategy:
    """A replica on each GPU, or on each of as many logical CPU devices."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"{'GPU' if gpus else 'CPU'}:{index}" for index in range(replicas)])


def batches(args: argparse.Namespace) -> tuple[tf.data.Dataset, float]:
    """Endless global batches in random order, each padded to its longest example; and the mean tokens of an example."""
    examples = read_examples(args)
    premises, hypotheses = [each["premise"] for each in examples], [each["hypothesis"] for each in examples]
    tokenizer = AutoTokenizer.from_pretrained(args.weights)
    encoded = tokenizer(premises, hypotheses, truncation=True, max_length=args.max_length)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    inputs = {
        name: tf.RaggedTensor.from_row_lengths(np.concatenate(encoded[its_name]).astype(np.int32), lengths)
        for name, its_name in names.items()
    }
    labels = np.array([each["label"] for each in examples], np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).cache().shuffle(len(examples), args.seed).repeat()
    dataset = dataset.ragged_batch(args.global_batch_size, drop_remainder=True).map(
        lambda batch, labels: ({name: ragged.to_tensor() for name, ragged in batch.items()}, labels)
    )
    return dataset.prefetch(tf.data.AUTOTUNE), sum(lengths) / len(lengths)


def model(args: argparse.Namespace) -> keras.Model:
    """KerasHub's classifier, with its tanh approximation of GELU."""
    if args.precision == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = BertBackbone.from_preset(str(args.weights), dropout=0.0)
    return BertTextClassifier(backbone, num_classes=number_of_classes(args), dropout=0.0)
