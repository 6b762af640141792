"""Keras models as users write them, correct and wrong ones. They take x [n, 5] and return logits of 3 classes."""

from typing import Any

import keras
from keras import layers

TRACED_TYPES: list[Any] = []  # dtypes of the outputs in each trace of `compute_losses_of_two_traces`


class Late(keras.Model):
    """A model that creates its layer in the first call, which Keras forbids."""

    def call(self, x: Any) -> Any:
        if not hasattr(self, "out"):
            self.out = layers.Dense(3)
        return self.out(x)


class Masked(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="relu"), layers.Dense(3)

    def call(self, x: Any, mask: Any) -> Any:
        return self.out(self.hidden(x * keras.ops.cast(mask, x.dtype)))


def plain(activation: str = "relu") -> keras.Model:
    return keras.Sequential([keras.Input((5,)), layers.Dense(4, activation=activation), layers.Dense(3)])


def softmax() -> keras.Model:
    return keras.Sequential([plain(), layers.Softmax()])


class WithLoss(keras.layers.Layer):
    """A layer that adds a loss of its own."""

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


class Counting(keras.layers.Layer):
    """A layer that counts the forward passes in training."""

    def __init__(self, aggregation: str = "none", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.calls = self.add_weight(
            name="calls", shape=(), initializer="zeros", trainable=False, dtype="int32", aggregation=aggregation
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1)
        return x * keras.ops.tanh(1 + keras.ops.cast(self.calls, x.dtype))


class Centred(keras.layers.Layer):
    """A layer with a moving average of its inputs, which is named as BatchNorm's and used in training."""

    def build(self, shape: Any) -> None:
        self.moving_mean = self.add_weight(name="moving_mean", shape=shape[-1:], initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.moving_mean.assign(0.9 * self.moving_mean + 0.1 * keras.ops.mean(x, 0))
        return x - self.moving_mean


def build_with(layer: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((5,)), layers.Dense(4, activation="relu"), layer, layers.Dense(3)])


def regularized() -> keras.Model:
    return build_with(layers.Dense(4, kernel_regularizer="l2", name="middle"))


def active() -> keras.Model:
    return build_with(layers.Dense(4, activity_regularizer="l1", name="middle"))


def constrained() -> keras.Model:
    return build_with(layers.Dense(4, bias_constraint="non_neg", name="middle"))


def with_loss() -> keras.Model:
    return build_with(WithLoss())


def penalized() -> keras.Model:
    return build_with(layers.ActivityRegularization(l2=0.1, name="penalty"))


class Clipped(layers.Layer):
    """A layer that keeps its weights in a range that they are in at first."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(name="scale", shape=shape[-1:], initializer="ones")

    def call(self, x: Any) -> Any:
        self.scale.assign(keras.ops.clip(self.scale, 0, 2))
        return x * self.scale


def clipped() -> keras.Model:
    return build_with(Clipped(name="clipped"))


class OwnLoss(keras.Model):
    """A model with a loss of its own for `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.out(x)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) + keras.ops.sum(self.out.kernel)


class FunctionalLoss(keras.Model):
    """A functional model with a loss of its own, as libraries have them."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().compute_loss(*args, **kwargs)


def functional_loss() -> keras.Model:
    x = keras.Input((5,))
    return FunctionalLoss(x, layers.Dense(3)(x))


def unwrapped_loss() -> keras.Model:
    model = functional_loss()
    return keras.Model(model.inputs, model.outputs)


def replaced_loss() -> keras.Model:
    model = OwnLoss()
    model.train_step = lambda data: {"loss": 0.0}
    return model


def counting() -> keras.Model:
    return build_with(Counting(name="counting"))


def summed() -> keras.Model:
    return build_with(Counting("sum", name="counting"))


def centred() -> keras.Model:
    return build_with(Centred(name="centred"))


def spectral() -> keras.Model:
    return build_with(keras.layers.SpectralNormalization(layers.Dense(4, name="dense"), name="spectral"))


class UniformNoise(layers.Layer):
    """A layer that adds random numbers in evaluation too."""

    def call(self, x: Any) -> Any:
        return x + keras.random.uniform(keras.ops.shape(x))


def noisy() -> keras.Model:
    return build_with(UniformNoise(name="noise"))


class Standardized(keras.layers.Layer):
    """A layer that divides by the standard deviation of the batch."""

    def call(self, x: Any) -> Any:
        return x / (keras.ops.std(x, axis=0) + 0.1)


class HookedGradient(keras.layers.Layer):
    """A layer that divides the gradient of its outputs by its norm over the batch, or limits it."""

    def __init__(self, limit: float | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.limit = limit

    def call(self, x: Any) -> Any:
        @keras.ops.custom_gradient
        def identity(x: Any) -> Any:
            return 1 * x, self.change_gradient

        return identity(x)

    def change_gradient(self, gradient: Any) -> Any:
        if self.limit is None:
            return gradient / keras.ops.norm(gradient)
        return keras.ops.clip(gradient, -self.limit, self.limit)


def normalized_gradient() -> keras.Model:
    return build_with(HookedGradient(None))


def clamped_gradient() -> keras.Model:
    return build_with(HookedGradient(0.01))


def standardized() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), Standardized(name="standardized"), layers.Dense(3)])


class Static(keras.Model):
    """A model that reads the size of an axis of its input, which a compiled step may not know."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.out = axis, layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.out(x) * (x.shape[self.axis] * 0.5)


def reads_width() -> keras.Model:
    return Static(1)


def reads_batch() -> keras.Model:
    return Static(0)


def tanh() -> keras.Model:
    return plain("tanh")


def late() -> keras.Model:
    return Late()


def masked() -> keras.Model:
    return Masked()


def compute_mean_loss(outputs: Any, labels: Any) -> Any:
    losses = keras.ops.categorical_crossentropy(keras.ops.one_hot(labels, 3), outputs, from_logits=True)
    return keras.ops.mean(losses)


def compute_contrastive_losses(outputs: Any, labels: Any) -> Any:
    """Return the losses of examples that are compared with all other examples of the batch."""
    similarities = keras.ops.matmul(outputs, keras.ops.transpose(outputs))
    return keras.losses.sparse_categorical_crossentropy(
        keras.ops.arange(keras.ops.shape(labels)[0]), similarities, from_logits=True
    )


def compute_eager_losses(outputs: Any, labels: Any) -> Any:
    return keras.ops.convert_to_tensor(-outputs.numpy()[range(len(labels)), labels])


def compute_pair(outputs: Any, labels: Any) -> Any:
    return outputs, labels


def compute_losses_of_two_traces(outputs: Any, labels: Any) -> Any:
    """Return the losses of examples, but fail if they are traced more often than in float32 and in float64."""
    TRACED_TYPES.append(outputs.dtype)
    assert len(TRACED_TYPES) == len(set(TRACED_TYPES))
    return keras.ops.logsumexp(outputs, 1)


def of_each_value() -> keras.Model:
    """Return a model that returns logits [n, 5, 3] of a class for each value of x."""
    return keras.Sequential([keras.Input((5,)), layers.Reshape((5, 1)), layers.Conv1D(3, 1)])
