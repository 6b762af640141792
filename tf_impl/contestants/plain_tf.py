"""A training loop under MirroredStrategy, as TensorFlow's guide to custom loops with tf.distribute writes it."""

import keras
import tensorflow as tf

from common.bench.contestant_task import RowWriter, parse_arguments
from tf_impl.contestants.keras_task import build_model, create_strategy, make_batches

args = parse_arguments()
keras.utils.set_random_seed(args.seed)
mirrored = create_strategy(args.replicas)
dataset, mean_tokens = make_batches(args)

with mirrored.scope():
    classifier = build_model(args)
    optimizer = keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0)
    optimizer.build(classifier.trainable_variables)


def replica_step(inputs: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
    """Update the weights from the shard of one replica. Return its share of the loss."""
    with tf.GradientTape() as tape:
        logits = tf.cast(classifier(inputs, training=True), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=args.global_batch_size)
    gradients = tape.gradient(loss, classifier.trainable_variables)
    optimizer.apply_gradients(zip(gradients, classifier.trainable_variables, strict=True))
    return loss


@tf.function(reduce_retracing=True)
def train_step(inputs: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
    """Update the weights from a global batch. Return its loss."""
    losses = mirrored.run(replica_step, args=(inputs, labels))
    return mirrored.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


writer = RowWriter(args)
for inputs, labels in mirrored.experimental_distribute_dataset(dataset):
    loss = train_step(inputs, labels)
    writer.write(round(mean_tokens * args.global_batch_size))
    if writer.step % 10 == 0:
        print(f"step {writer.step}: loss {float(loss):.4f}", flush=True)
