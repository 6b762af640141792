"""Keras's `fit` under MirroredStrategy with a classifier of KerasHub's."""

import keras

from common.bench.contestant_task import Rows, arguments
from tf_impl.contestants.keras_task import batches, model, strategy

args = arguments()
keras.utils.set_random_seed(args.seed)
mirrored = strategy(args.replicas)
dataset, mean_tokens = batches(args)


class WriteRows(keras.callbacks.Callback):
    """Writes a row after each step. The tokens are those of the mean batch: a callback does not see the batch."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.rows = Rows(args)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.rows.write(round(mean_tokens * args.global_batch_size))


with mirrored.scope():
    classifier = model(args)
    classifier.compile(
        keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
classifier.fit(dataset, steps_per_epoch=1_000_000, callbacks=[WriteRows()], verbose=0)
