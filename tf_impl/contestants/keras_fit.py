"""Keras's `fit` under MirroredStrategy with a classifier of KerasHub."""

import keras

from common.bench.contestant_task import parse_arguments
from tf_impl.contestants.keras_task import RowCallback, build_model, create_strategy, make_batches

args = parse_arguments()
keras.utils.set_random_seed(args.seed)
mirrored = create_strategy(args.replicas)
dataset, mean_tokens = make_batches(args)

with mirrored.scope():
    classifier = build_model(args)
    classifier.compile(
        keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
classifier.fit(dataset, steps_per_epoch=1_000_000, callbacks=[RowCallback(args, mean_tokens)], verbose=0)
