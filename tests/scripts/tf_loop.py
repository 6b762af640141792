"""Train a small text classifier in a loop of one's own, with a compiled step."""

import argparse

import keras
import numpy as np
import tensorflow as tf

from tf_impl.record import Recorder


class Classifier(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(50, 16, mask_zero=True)
        self.recurrent = keras.layers.GRU(16)
        self.dropout = keras.layers.Dropout(0.2)
        self.head = keras.layers.Dense(3)

    def call(self, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
        hidden = self.recurrent(self.embedding(tokens))
        return self.head(self.dropout(hidden, training=training))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    args = parser.parse_args()

    keras.utils.set_random_seed(42)
    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(0, 50, size=(64, 9)), rng.integers(0, 3, size=64)
    dataset = tf.data.Dataset.from_tensor_slices((tokens, labels)).shuffle(64).batch(8, drop_remainder=True)

    model = Classifier()
    optimizer = keras.optimizers.Adam(1e-2)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mean_loss = keras.metrics.Mean()

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        mean_loss.update_state(loss)
        return loss

    recorder = Recorder(args.record, model, optimizer) if args.record else None
    for epoch in range(2):
        for x, y in dataset:
            if recorder is not None:
                with recorder.step():
                    loss = train_step(x, y)
            else:
                loss = train_step(x, y)
            print("loss", float(loss))
        print("epoch", epoch, "mean", float(mean_loss.result()), "random", float(tf.random.uniform(())))


if __name__ == "__main__":
    main()
