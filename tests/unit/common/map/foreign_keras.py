"""Factories of Keras models as other libraries write them; foreign_torch.py has one of the same name for each."""

import keras
from keras import ops

WIDTH, HEADS = 8, 2


class Attention(keras.Model):
    """Self-attention whose projections are layers of their own. key_heads: the number of heads of keys and values."""

    def __init__(self, key_heads: int = HEADS) -> None:
        super().__init__()
        self.key_heads, size = key_heads, WIDTH // HEADS
        self.query, self.key, self.value = (
            keras.layers.EinsumDense("abc,cde->abde", (None, heads, size), bias_axes="de", name=name)
            for name, heads in (("query", HEADS), ("key", key_heads), ("value", key_heads))
        )
        self.projection = keras.layers.EinsumDense("abde,dec->abc", (None, WIDTH), bias_axes="c", name="projection")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        query, key, value = (ops.transpose(part(x), (0, 2, 1, 3)) for part in (self.query, self.key, self.value))
        key, value = (ops.repeat(part, HEADS // self.key_heads, 1) for part in (key, value))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) / (WIDTH // HEADS) ** 0.5
        shares = ops.cast(ops.softmax(ops.cast(scores, "float32"), -1), x.dtype)
        return self.projection(ops.transpose(ops.matmul(shares, value), (0, 2, 1, 3)))


class FusedProjections(keras.Model):
    """Self-attention that computes all its projections in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.output_dense = keras.layers.Dense(3 * WIDTH), keras.layers.Dense(WIDTH)

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        n, time = x.shape[:2]
        query, key, value = ops.split(ops.reshape(self.fused(x), (n, time, 3 * HEADS, -1)), 3, 2)
        return self.output_dense(ops.reshape(ops.dot_product_attention(query, key, value), (n, time, WIDTH)))


class GatedFeedForward(keras.Model):
    """A feed-forward network with layers for gate and value. is_gate_first: whether the gate is computed first."""

    def __init__(self, is_gate_first: bool = True) -> None:
        super().__init__()
        self.is_gate_first = is_gate_first
        self.gate, self.up = keras.layers.Dense(5, use_bias=False), keras.layers.Dense(5, use_bias=False)
        self.down = keras.layers.Dense(WIDTH, use_bias=False)

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        if self.is_gate_first:
            return self.down(ops.silu(self.gate(x)) * self.up(x))
        return self.down(self.up(x) * ops.silu(self.gate(x)))


class Positions(keras.Model):
    """Embeddings of tokens and of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = keras.layers.Embedding(11, 6), keras.layers.Embedding(8, 6)
        self.projection = keras.layers.Dense(3)

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        return self.projection(self.tokens(tokens) + self.positions(ops.arange(tokens.shape[1])))


class RootMeanSquareNorm(keras.Model):
    """A norm that computes in float32, and multiplies with a table that was computed in float32."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.scale = self.add_weight(shape=(WIDTH,), initializer="ones", name="scale")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        wide = ops.cast(x, "float32")
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, keepdims=True) + 1e-6)
        table = ops.power(ops.cast(10, "float32"), -ops.arange(WIDTH, dtype="float32") / WIDTH)
        return self.scale * ops.cast(wide, x.dtype) * ops.cast(table, x.dtype)


class LearnedOffset(keras.Model):
    """A layer that adds a whole embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.offset = keras.layers.Dense(4), keras.layers.Embedding(5, 4)

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return self.linear(x) + self.offset(ops.arange(5))


class WithHead(keras.Model):
    """Two layers, and a third one of the same size whose output the model does not return."""

    def __init__(self) -> None:
        super().__init__()
        self.layers_in_order = [keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(6)]
        self.head = keras.layers.Dense(6)

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        hidden = self.layers_in_order[0](x)
        self.head(hidden)
        return self.layers_in_order[1](hidden)


class Experts(keras.Model):
    """A mixture of experts, whose matrices are (inputs, outputs)."""

    def __init__(self, is_gate_first: bool = True) -> None:
        super().__init__()
        self.router, self.head = keras.layers.Dense(3, activation="softmax"), keras.layers.Dense(4)
        self.is_gate_first = is_gate_first

    def build(self, shape: tuple[int, ...]) -> None:
        self.gate_up = self.add_weight(name="gate_up", shape=(3, WIDTH, 10))
        self.down = self.add_weight(name="down", shape=(3, 5, WIDTH))

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        gate, value = keras.ops.split(keras.ops.einsum("nti,eio->nteo", x, self.gate_up), 2, -1)
        if not self.is_gate_first:
            gate, value = value, gate
        experts = keras.ops.einsum("nteo,eoi->ntei", keras.ops.silu(gate) * value, self.down)
        return self.head(keras.ops.sum(keras.ops.expand_dims(self.router(x), -1) * experts, 2))


class SplitExperts(keras.Model):
    """The same, whose gates and values are two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = keras.layers.Dense(3, activation="softmax"), keras.layers.Dense(4)

    def build(self, shape: tuple[int, ...]) -> None:
        self.gate, self.up = (self.add_weight(name=name, shape=(3, WIDTH, 5)) for name in ("gate", "up"))
        self.down = self.add_weight(name="down", shape=(3, 5, WIDTH))

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        gate, value = (keras.ops.einsum("nti,eio->nteo", x, matrices) for matrices in (self.gate, self.up))
        experts = keras.ops.einsum("nteo,eoi->ntei", keras.ops.silu(gate) * value, self.down)
        return self.head(keras.ops.sum(keras.ops.expand_dims(self.router(x), -1) * experts, 2))


class PositionTable(keras.Model):
    """A parameter that is added to all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.head = keras.layers.Dense(3)

    def build(self, shape: tuple[int, ...]) -> None:
        self.positions = self.add_weight(name="positions", shape=(5, 6))

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return self.head(x + self.positions)


def transposed_linear() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(6)])


def fused(by_head: bool = False) -> keras.Model:
    return Attention()


def pointwise() -> keras.Model:
    convolution = keras.layers.Conv2D(6, 1, activation="tanh")
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Reshape((1, 1, 6)), convolution, keras.layers.Flatten(), keras.layers.Dense(4)]
    )


def separate(is_value_second: bool = False) -> keras.Model:
    return FusedProjections()


fused_transposed = fused_in_another_order = fused


def fused_groups() -> keras.Model:
    return Attention(key_heads=1)


def gated() -> keras.Model:
    return GatedFeedForward()


def positions(first: int = 0) -> keras.Model:
    return Positions()


def norm_in_float32() -> keras.Model:
    return RootMeanSquareNorm()


def offset() -> keras.Model:
    return LearnedOffset()


def without_head() -> keras.Model:
    return WithHead()


def with_biases() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(6, bias_initializer="ones") for _ in range(7)])


def float32_layer() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(6, dtype="float32")])


def gate_last() -> keras.Model:
    return GatedFeedForward(is_gate_first=False)


def norms(last_epsilon: float = 1e-6) -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.RMSNormalization(epsilon=1e-6),
            keras.layers.Dense(8),
            keras.layers.RMSNormalization(epsilon=last_epsilon),
        ]
    )


def norms_of_another_epsilon() -> keras.Model:
    return norms(1e-2)


def experts() -> keras.Model:
    return Experts()


def experts_in_another_order() -> keras.Model:
    return Experts(is_gate_first=False)


def split_experts() -> keras.Model:
    return SplitExperts()


def position_table() -> keras.Model:
    return PositionTable()


def gelu() -> keras.Model:
    activation = keras.layers.Activation(lambda x: keras.activations.gelu(x, approximate=True))
    return keras.Sequential([keras.layers.Dense(8), activation, keras.layers.Dense(3)])


def small_weights() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Rescaling(0.5), *(keras.layers.Dense(6) for _ in range(8))]
    )
