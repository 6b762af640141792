"""Keras's `fit` under MirroredStrategy with a classifier of KerasHub."""

import keras
from typing_extensions import override

from common.bench.contestant_task import RowWriter, parse_arguments
from tf_impl.contestants.keras_task import build_model, create_strategy, make_batches

args = parse_arguments()
keras.utils.set_random_seed(args.seed)
mirrored = create_strategy(args.replicas)
dataset, mean_tokens = make_batches(args)


class RowCallback(keras.callbacks.Callback):
    """Callback that writes a row after each step. It does not see the batch, and counts the mean tokens of a batch."""

    @override
    def on_train_begin(self, logs: dict | None = None) -> None:
        self.writer = RowWriter(args)

    @override
    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.writer.write(round(mean_tokens * args.global_batch_size))


with mirrored.scope():
    classifier = build_model(args)
    classifier.compile(
        keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
classifier.fit(dataset, steps_per_epoch=1_000_000, callbacks=[RowCallback()], verbose=0)
