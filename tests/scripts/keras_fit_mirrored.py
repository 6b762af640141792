"""Fit a regression on two replicas with MirroredStrategy."""

import argparse

import keras
import numpy as np
import tensorflow as tf

from tf_impl.record import FitRecorder


def make_dataset(batch_size: int) -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 10)).astype("float32")
    y = (x @ rng.normal(size=(10, 1)) + 0.1 * rng.normal(size=(70, 1))).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(70, seed=3).batch(batch_size)


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
                keras.layers.Dense(16, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
    callbacks = [FitRecorder(args.record)] if args.record else []
    history = model.fit(make_dataset(8 * strategy.num_replicas_in_sync), epochs=2, callbacks=callbacks, verbose=0)
    for epoch, loss in enumerate(history.history["loss"]):
        print("epoch", epoch, "loss", loss)
    print("weights", float(sum(np.abs(weight).sum() for weight in model.get_weights())))


if __name__ == "__main__":
    main()
