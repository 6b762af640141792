"""Train a regression in a loop of one's own under MirroredStrategy, with a loss over the global batch."""

import argparse

import keras
import numpy as np
import tensorflow as tf

from tf_impl.record import Recorder


def make_dataset() -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 10)).astype("float32")
    y = (x @ rng.normal(size=(10, 1)) + 0.1 * rng.normal(size=(64, 1))).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).batch(16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    args = parser.parse_args()

    keras.utils.set_random_seed(42)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((10,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
        loss_function = keras.losses.MeanSquaredError(reduction=None)

    def train_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = loss_function(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=16)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        return loss

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(train_replica, args=(x, y))
        return strategy.reduce("SUM", losses, axis=None)

    recorder = Recorder(args.record, model, optimizer) if args.record else None
    for _ in range(2):
        for x, y in strategy.experimental_distribute_dataset(make_dataset()):
            if recorder is not None:
                with recorder.step():
                    loss = train_step(x, y)
            else:
                loss = train_step(x, y)
            print("loss", float(loss))


if __name__ == "__main__":
    main()
