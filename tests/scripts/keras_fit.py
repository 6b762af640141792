"""Classify drawn images with a small convolutional network and `model.fit`."""

import argparse

import keras
import numpy as np
import tensorflow as tf

from tf_impl.record import FitRecorder


def draw_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw images of two classes: bright at the top or at the bottom."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, size=(count, 12, 12, 1)).astype("float32")
    labels = rng.integers(0, 2, size=count)
    images[labels == 1, :6] *= 0.5
    return images, labels


def build_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    parser.add_argument("--jit", action="store_true")
    args = parser.parse_args()

    keras.utils.set_random_seed(42)
    x, y = draw_images(80, seed=0)
    x_val, y_val = draw_images(16, seed=1)
    model = build_model()
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, decay_steps=20)
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=args.jit,
    )
    callbacks = [keras.callbacks.TerminateOnNaN()]
    if args.record:
        callbacks.append(FitRecorder(args.record))
    history = model.fit(
        x, y, batch_size=16, epochs=2, validation_data=(x_val, y_val), class_weight={0: 1.0, 1: 2.0},
        callbacks=callbacks, verbose=0,
    )  # fmt: skip
    for epoch in range(2):
        print("epoch", epoch, {name: values[epoch] for name, values in history.history.items()})
    print("random", float(tf.random.uniform(())), np.random.rand())


if __name__ == "__main__":
    main()
