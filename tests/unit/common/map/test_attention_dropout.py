"""The dropout of attentions is paired, also with a dropout layer that a model applies to the probabilities itself."""

from typing import Any

import pytest

from common.errors import UserError
from common.map.dropout_pairs import DropoutPair, pair_dropouts
from common.map.noise import Noise
from tests.unit.common.map.conftest import DescribeModel, PairModels

pytestmark = pytest.mark.slow

HERE = "test_attention_dropout"
STEPS, WIDE = {"x": "float32[3,5,6]"}, {"x": "float32[3,5,8]"}


def pair_dropouts_of(pair_models: PairModels, torch: str, keras: str) -> list[DropoutPair]:
    models = pair_models(torch, keras, WIDE)
    assert models.proof is not None
    assert models.proven
    assert models.torch_description.unaligned_noise == models.keras_description.unaligned_noise == []
    return pair_dropouts(models.torch_description, models.keras_description, *models.dropout_inputs)


@pytest.mark.parametrize("torch", ["transformer", f"{HERE}:torch_sequence_first"])
def test_transformer_layers_are_paired(pair_models: PairModels, torch: str) -> None:
    """Whichever axis comes first in PyTorch."""
    pairs = pair_dropouts_of(pair_models, torch, "transformer")
    names = ("self_attn.attention_dropout", "dropout1", "dropout", "dropout2")
    assert [pair.torch for pair in pairs] == [f"layers.{index}.{name}" for index in range(2) for name in names]
    assert len({pair.keras for pair in pairs}) == 8
    assert {pair.layout for pair in pairs} == {None}


@pytest.mark.parametrize(
    ("torch", "keras", "name"),
    [
        ("self_attention", f"{HERE}:keras_written_attention", "attention.attention_dropout"),
        (f"{HERE}:torch_written_attention", "self_attention", "dropout"),
        (f"{HERE}:torch_grouped_attention", f"{HERE}:keras_grouped_attention", "dropout"),
    ],
)
def test_an_attention_is_paired_with_one_that_is_written_out(
    pair_models: PairModels, torch: str, keras: str, name: str
) -> None:
    (pair,) = pair_dropouts_of(pair_models, torch, keras)
    assert pair == DropoutPair(name, pair.keras, Noise("drop", "element", 0.1), None)


def test_rates_that_differ_are_an_error(describe_model: DescribeModel) -> None:
    torch_description = describe_model("torch", "torch_models:self_attention", WIDE)
    for keras, rates in ((f"{HERE}:keras_other_rate", r".* \(0.2\)"), ("keras_models:fused_dense", "no layer")):
        keras_description = describe_model("tf", keras, WIDE)
        message = rf"^PyTorch drops at attention.attention_dropout \(0.1\), Keras at {rates}$"
        with pytest.raises(UserError, match=message):
            pair_dropouts(torch_description, keras_description, {}, {})


@pytest.mark.parametrize(
    ("side", "factory", "inputs", "noise"),
    [
        ("torch", "torch_models:stacked_lstm", STEPS, {"layer (LSTM)"}),
        ("tf", "keras_models:stacked_lstm", STEPS, {"(LSTM)", "(LSTMCell)"}),
        ("torch", f"{HERE}:torch_zero_attention", WIDE, {"attention (MultiheadAttention)"}),
        ("tf", f"{HERE}:keras_one_head", WIDE, {"attention (Attention)"}),
    ],
)
def test_dropout_that_cannot_be_aligned_is_noted(
    describe_model: DescribeModel, side: str, factory: str, inputs: dict[str, str], noise: set[str]
) -> None:
    layers = describe_model(side, factory, inputs).unaligned_noise
    if inputs == STEPS and side == "tf":  # the paths of the two layers are Keras's
        layers = [layer.rpartition(" ")[2] for layer in layers]
    assert set(layers) == noise


def torch_sequence_first() -> Any:
    from torch import Tensor, nn

    class Turned(nn.TransformerEncoder):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x.transpose(0, 1)).transpose(0, 1)

    return Turned(nn.TransformerEncoderLayer(8, 2, 16, activation="gelu"), 2, enable_nested_tensor=False)


def torch_written_attention(groups: int = 2) -> Any:
    """Two heads of 4 features; each key and value is of 2 / groups heads."""
    from torch import Tensor, nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.output = nn.Linear(8, 8), nn.Linear(8, 8)
            self.key, self.value = nn.Linear(8, 4 * groups), nn.Linear(8, 4 * groups)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (
                layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value)
            )
            key, value = (each.repeat_interleave(2 // groups, 1) for each in (key, value))
            weights = self.dropout((query @ key.mT / 2).softmax(-1))
            result: Tensor = self.output((weights @ value).transpose(1, 2).flatten(2))
            return result

    return Attention()


def torch_grouped_attention() -> Any:
    return torch_written_attention(groups=1)


def torch_zero_attention() -> Any:
    from torch import Tensor, nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, add_zero_attn=True, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.attention(x, x, x)[0]
            return result

    return Attention()


def keras_written_attention(rate: float = 0.1) -> Any:
    import keras
    from keras import layers, ops

    class Attention(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.result = (
                layers.Dense(8, name=name) for name in ("query", "key", "value", "result")
            )
            self.dropout = layers.Dropout(rate)

        def call(self, x: Any, training: bool = False) -> Any:
            query, key, value = (
                ops.transpose(ops.reshape(layer(x), (3, 5, 2, 4)), (0, 2, 1, 3))
                for layer in (self.query, self.key, self.value)
            )
            weights = self.dropout(ops.softmax(query @ ops.transpose(key, (0, 1, 3, 2)) / 2), training=training)
            return self.result(ops.reshape(ops.transpose(weights @ value, (0, 2, 1, 3)), (3, 5, 8)))

    return Attention()


def keras_other_rate() -> Any:
    return keras_written_attention(0.2)


def keras_grouped_attention() -> Any:
    import keras

    x = keras.Input((5, 8))
    return keras.Model(x, keras.layers.GroupQueryAttention(4, 2, 1, dropout=0.1)(x, x))


def keras_one_head() -> Any:
    import keras

    x = keras.Input((5, 8))
    return keras.Model(x, keras.layers.Attention(dropout=0.1, name="attention")([x, x]))
