"""A `tf.function` loop under MirroredStrategy with the model of `model=custom`, as its user would write it."""

import keras
import tensorflow as tf

from common.bench.contestant_task import RowWriter, parse_custom_arguments
from tf_impl.contestants.custom_task import Inputs, build_loss, build_model, make_batches
from tf_impl.contestants.keras_task import create_strategy

args = parse_custom_arguments()
keras.utils.set_random_seed(args.seed)
mirrored = create_strategy(args.replicas)
dataset = make_batches(args)
compute_losses = build_loss(args, None)

with mirrored.scope():
    model = build_model(args, dataset)
    optimizer = keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)


def replica_step(inputs: Inputs, labels: tf.Tensor) -> tf.Tensor:
    """Update the weights from the shard of one replica. Return its share of the loss."""
    with tf.GradientTape() as tape:
        losses = compute_losses(labels, tf.cast(model(inputs, training=True), tf.float32))
        loss = tf.reduce_mean(losses) / mirrored.num_replicas_in_sync
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function(reduce_retracing=True)
def train_step(inputs: Inputs, labels: tf.Tensor) -> tf.Tensor:
    """Update the weights from a global batch. Return its loss."""
    losses = mirrored.run(replica_step, args=(inputs, labels))
    return mirrored.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


writer = RowWriter(args)
for inputs, labels in mirrored.experimental_distribute_dataset(dataset):
    loss = train_step(inputs, labels)
    writer.write(0)  # nothing here knows which tokens are padding
    if writer.step % 10 == 0:
        print(f"step {writer.step}: loss {float(loss):.4f}", flush=True)
