"""Dropout in models of transformers and KerasHub, and dropout by functions."""

from typing import Any

import pytest

from common.map.dropout_pairs import pair_dropouts
from common.map.noise import Noise
from tests.unit.common.map.conftest import DescribeModel, PairModels

pytestmark = pytest.mark.slow

HERE = "test_dropout_of_libraries"
WIDE = {"x": "float32[3,5,8]"}
TOKENS = {"tokens": "int32[3,6]<20", "real": "int32[3,6,prefix]"}


def test_bert_of_transformers_and_of_keras_hub(pair_models: PairModels) -> None:
    """Its attention passes the probabilities through the dropout layer whose rate it would pass to a function."""
    models = pair_models(f"{HERE}:torch_bert", f"{HERE}:keras_bert", TOKENS)
    assert models.proof is not None
    assert models.proven
    assert models.torch_description.unaligned_noise == models.keras_description.unaligned_noise == []
    pairs = pair_dropouts(models.torch_description, models.keras_description, *models.dropout_inputs)
    names = ("attention.self.dropout", "attention.output.dropout", "output.dropout")
    layers = [f"bert.encoder.layer.{index}.{name}" for index in range(2) for name in names]
    assert [pair.torch for pair in pairs] == ["bert.embeddings.dropout", *layers]
    assert {pair.layout for pair in pairs} == {None}


@pytest.mark.parametrize(("name", "dropout"), [("gpt2", "attn_dropout"), ("llama", "attention_dropout")])
def test_attention_of_transformers_drops_in_a_layer(describe_model: DescribeModel, name: str, dropout: str) -> None:
    description = describe_model("torch", f"{HERE}:torch_{name}", {"tokens": "int32[3,6]<20"})
    assert description.unaligned_noise == []
    assert any(path.endswith(f".{dropout}") for path in description.dropouts)


def test_functions_that_drop_are_noted(describe_model: DescribeModel) -> None:
    torch_description = describe_model("torch", f"{HERE}:torch_functions", WIDE)
    keras_description = describe_model("tf", f"{HERE}:keras_functions", WIDE)
    assert torch_description.unaligned_noise == ["model (scaled_dot_product_attention)"]
    assert keras_description.unaligned_noise == ["model (dropout)"]
    assert keras_description.dropouts == {}
    (layer,) = torch_description.dropouts.values()  # a layer that drops and does nothing else
    assert (layer.name, layer.noise) == ("inner", Noise("drop", "element", 0.1))


def test_dropout_that_is_off_is_not_noted(pair_models: PairModels) -> None:
    models = pair_models(f"{HERE}:torch_functions", f"{HERE}:keras_functions", WIDE, rate=0.0)
    assert models.torch_description.unaligned_noise == models.keras_description.unaligned_noise == []
    assert models.proven


def torch_bert() -> Any:
    from torch import Tensor, nn
    from transformers import BertConfig, BertModel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes: dict[str, Any] = {
                "hidden_size": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 16,
            }
            config = BertConfig(
                vocab_size=20, max_position_embeddings=6, hidden_act="gelu_pytorch_tanh", pad_token_id=None, **sizes
            )
            self.bert = BertModel(config)

        def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
            result: Tensor = self.bert(input_ids=tokens, attention_mask=real).pooler_output
            return result

    return Model()


def keras_bert() -> Any:
    import keras
    import keras_hub

    tokens, real = (keras.Input((None,), name=name, dtype="int32") for name in ("tokens", "real"))
    bert = keras_hub.models.BertBackbone(20, 2, 2, 8, 16, dropout=0.1, max_sequence_length=6)
    ids = {"token_ids": tokens, "padding_mask": real, "segment_ids": keras.ops.zeros_like(tokens)}
    return keras.Model({"tokens": tokens, "real": real}, bert(ids)["pooled_output"])


def torch_gpt2() -> Any:
    from transformers import GPT2Config, GPT2Model

    return _last_hidden_state(GPT2Model(GPT2Config(vocab_size=20, n_positions=6, n_embd=8, n_layer=2, n_head=2)))


def torch_llama() -> Any:
    from transformers import LlamaConfig, LlamaModel

    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    return _last_hidden_state(
        LlamaModel(LlamaConfig(vocab_size=20, num_key_value_heads=1, attention_dropout=0.1, **sizes))
    )


def _last_hidden_state(inner: Any) -> Any:
    from torch import Tensor, nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Tensor) -> Tensor:
            result: Tensor = self.inner(input_ids=tokens, use_cache=False).last_hidden_state
            return result

    return Model()


def torch_functions(rate: float = 0.1) -> Any:
    from torch import Tensor, nn
    from torch.nn import functional

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(x, rate, training=self.training)

    class Functions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.dense = Inner(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(self.dense(x))
            return functional.scaled_dot_product_attention(x, x, x, dropout_p=rate if self.training else 0.0)

    return Functions()


def keras_functions(rate: float = 0.1) -> Any:
    import keras

    class Functions(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="functions")
            self.dense = keras.layers.Dense(8)

        def call(self, x: Any, training: bool = False) -> Any:
            x = self.dense(x)
            if training:
                x = keras.random.dropout(x, rate)
            weights = keras.ops.softmax(x @ keras.ops.transpose(x, (0, 2, 1)) / 8**0.5)
            return weights @ x

    return Functions()
