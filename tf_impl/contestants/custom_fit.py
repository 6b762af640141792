"""Keras's `fit` under MirroredStrategy with the model of `model=custom`, as its user would write it."""

import keras
from typing_extensions import override

from common.bench.contestant_task import RowWriter, parse_custom_arguments
from tf_impl.contestants.custom_task import build_loss, build_model, create_strategy, make_batches

args = parse_custom_arguments()
keras.utils.set_random_seed(args.seed)
mirrored = create_strategy(args.replicas)
dataset = make_batches(args)


class RowCallback(keras.callbacks.Callback):
    """Callback that writes a row after each step."""

    @override
    def on_train_begin(self, logs: dict | None = None) -> None:
        self.writer = RowWriter(args)

    @override
    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.writer.write(0)  # nothing here knows which tokens are padding


with mirrored.scope():
    model = build_model(args, dataset)
    optimizer = keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0)
    model.compile(optimizer, build_loss(args, "sum_over_batch_size"))
model.fit(dataset, steps_per_epoch=1_000_000, callbacks=[RowCallback()], verbose=0)
