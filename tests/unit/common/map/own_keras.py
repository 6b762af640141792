"""Factories of Keras models with classes of their own; own_torch.py has one of the same name for each."""

import keras
from keras import ops

WIDTH = 8


class OwnCell(keras.layers.Layer):
    """A GRU with weights of its own, in Keras's order of gates."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 15))
        self.recurrent_kernel = self.add_weight(name="recurrent_kernel", shape=(5, 15))
        self.biases = [self.add_weight(name=name, shape=(15,)) for name in ("input_bias", "recurrent_bias")]

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        state = ops.zeros((ops.shape(x)[0], 5), x.dtype)
        states = []
        for token in ops.unstack(x, axis=1):
            z, r, n = ops.split(token @ self.kernel + self.biases[0], 3, 1)
            state_z, state_r, state_n = ops.split(state @ self.recurrent_kernel + self.biases[1], 3, 1)
            update = ops.sigmoid(z + state_z)
            state = (1 - update) * ops.tanh(n + ops.sigmoid(r + state_r) * state_n) + update * state
            states.append(state)
        return ops.stack(states, 1)


class JoinedCell(keras.layers.Layer):
    """An LSTM with one kernel for the token and the state, and the gates i, j, f, o, as in TensorFlow 1."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1] + 5, 20))
        self.bias = self.add_weight(name="bias", shape=(20,))

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        state = memory = ops.zeros((ops.shape(x)[0], 5), x.dtype)
        for token in ops.unstack(x, axis=1):
            gates = ops.concatenate([token, state], 1) @ self.kernel + self.bias
            i, j, f, o = ops.split(gates, 4, 1)
            memory = ops.sigmoid(f) * memory + ops.sigmoid(i) * ops.tanh(j)
            state = ops.sigmoid(o) * ops.tanh(memory)
        return state


class TransformedPoints(keras.Model):
    """Points that are multiplied by a matrix, which a linear layer computes, and a convolution of them."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.convolution = keras.layers.Dense(WIDTH**2), keras.layers.Conv1D(4, 1)

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        matrix = ops.reshape(self.matrix(ops.max(x, 1)), (-1, WIDTH, WIDTH))
        return ops.max(self.convolution(x @ matrix), 1)


class WeightNorm(keras.layers.Layer):
    """A linear layer of a square matrix (inputs, outputs), whose columns have learned lengths."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.direction = self.add_weight(name="direction", shape=(WIDTH, WIDTH))
        self.length = self.add_weight(name="length", shape=(WIDTH,), initializer="ones")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x @ (self.direction / ops.norm(self.direction, axis=0)) * self.length


def own_cells(gates: str) -> keras.Model:
    layer = keras.layers.LSTM if "f" in gates else keras.layers.GRU
    return keras.Sequential([layer(5, return_sequences=True), layer(5, return_sequences=True), keras.layers.Dense(2)])


def own_keras_cell() -> keras.Model:
    return keras.Sequential([OwnCell(), keras.layers.Dense(2)])


def joined_cell() -> keras.Model:
    return keras.Sequential([keras.Input((5, WIDTH)), JoinedCell(name="cell")])


def transformed_points() -> keras.Model:
    return TransformedPoints()


def own_squares() -> keras.Model:
    return keras.Sequential([WeightNorm(), keras.layers.ReLU(), WeightNorm()])
