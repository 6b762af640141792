"""The dropout of attentions is paired, also with a dropout layer that a model applies to the probabilities itself."""

from typing import Any

import pytest

from common.errors import UserError
from common.map.dropout_pairs import DropoutPair, pair_dropouts
from tests.unit.common.map.conftest import PairModels

HERE = "test_attention_dropout"
WIDE = {"x": "float32[3,5,8]"}


def pairs(pair_models: PairModels, ours: str, theirs: str) -> list[DropoutPair]:
    found = pair_models(ours, theirs, WIDE)
    assert found.proof is not None and not found.proof.errors
    assert found.torch_description.noise == found.keras_description.noise == []
    return pair_dropouts(found.torch_description, found.keras_description, *found.proof.dropout_inputs)


@pytest.mark.parametrize("ours", ["transformer", f"{HERE}:torch_sequence_first"])
def test_transformer_layers_are_paired(pair_models: PairModels, ours: str) -> None:
    """Whichever axis comes first in PyTorch."""
    found = pairs(pair_models, ours, "transformer")
    names = ("self_attn.attention_dropout", "dropout1", "dropout", "dropout2")
    assert [each.torch for each in found] == [f"layers.{index}.{name}" for index in range(2) for name in names]
    assert len({each.keras for each in found}) == 8
    assert {each.layout for each in found} == {None}


def test_an_attention_that_is_written_out_is_paired(pair_models: PairModels) -> None:
    (found,) = pairs(pair_models, "self_attention", f"{HERE}:keras_written_attention")
    assert found == DropoutPair("attention.attention_dropout", found.keras, None)
    (found,) = pairs(pair_models, f"{HERE}:torch_written_attention", "self_attention")
    assert found == DropoutPair("dropout", found.keras, None)


def test_grouped_attention_is_paired(pair_models: PairModels) -> None:
    (found,) = pairs(pair_models, f"{HERE}:torch_grouped_attention", f"{HERE}:keras_grouped_attention")
    assert found == DropoutPair("dropout", found.keras, None)


def test_rates_that_differ_are_an_error(pair_models: PairModels) -> None:
    with pytest.raises(UserError, match=r"^PyTorch drops at attention.attention_dropout \(0.1\), Keras at .* \(0.2\)$"):
        pairs(pair_models, "self_attention", f"{HERE}:keras_other_rate")
    with pytest.raises(UserError, match=r"Keras at no layer$"):
        pairs(pair_models, "self_attention", "fused_dense")


def test_what_cannot_be_aligned_is_noted(pair_models: PairModels) -> None:
    found = pair_models("stacked_lstm", "stacked_lstm", {"x": "float32[3,5,6]"})
    assert found.torch_description.noise == ["layer (LSTM)"]
    assert {each.rpartition(" ")[2] for each in found.keras_description.noise} == {"(LSTM)", "(LSTMCell)"}
    found = pair_models(f"{HERE}:torch_zero_attention", f"{HERE}:keras_one_head", WIDE)
    assert found.torch_description.noise == ["attention (MultiheadAttention)"]
    assert found.keras_description.noise == ["attention (Attention)"]


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
