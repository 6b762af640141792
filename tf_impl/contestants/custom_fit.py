"""Keras's `fit` under MirroredStrategy with the model of `model=custom`, as its user would write it."""

import keras

from common.bench.contestant_task import parse_custom_arguments
from tf_impl.contestants.custom_task import build_loss, build_model, make_batches
from tf_impl.contestants.keras_task import RowCallback, create_strategy

args = parse_custom_arguments()
keras.utils.set_random_seed(args.seed)
mirrored = create_strategy(args.replicas)
dataset = make_batches(args)

with mirrored.scope():
    model = build_model(args, dataset)
    optimizer = keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0)
    model.compile(optimizer, build_loss(args, "sum_over_batch_size"))
row_callback = RowCallback(args, mean_tokens=0)  # nothing here knows which tokens are padding
model.fit(dataset, steps_per_epoch=1_000_000, callbacks=[row_callback], verbose=0)
