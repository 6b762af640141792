"""Tests that unfolded attentions compute the same as the attentions of transformers."""

from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2Model,
    GPT2Config,
    GPT2Model,
    GptOssConfig,
    GptOssModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)

from common.data.dropout import derive_example_keys
from tests.unit import reference_dropout
from torch_impl.aligned_layers import align_dropout, use_dropout_keys
from torch_impl.attention import UNFOLDED, UnfoldedAttention, unfold_attention, unfolded_attention_forward
from torch_impl.forward_trace import ForwardTrace

SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 0], [1, 1, 2, 0, 0, 0]])
REAL = (TOKENS > 0).long()
PATHS = {  # paths of the dropout layers for the probabilities
    "bert": "encoder.layer.1.attention.self.dropout",
    "gpt2": "h.1.attn.attn_dropout",
    "llama": "layers.1.self_attn.attention_dropout",
    "gemma2": "layers.1.self_attn.attention_dropout",
    "t5": "encoder.block.1.layer.0.SelfAttention.dropout",
}
IN_FLOAT32 = ("gemma2",)  # the attention computes the softmax in float32


def make_model(name: str, rate: float = 0.1) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "bert":
        return BertModel(BertConfig(vocab_size=10, attention_probs_dropout_prob=rate, hidden_dropout_prob=0.0, **SIZES))
    if name == "gpt2":
        gpt2: dict[str, Any] = {"vocab_size": 10, "n_positions": 6, "n_embd": 8, "n_layer": 2, "n_head": 2}
        return GPT2Model(GPT2Config(attn_pdrop=rate, resid_pdrop=0.0, embd_pdrop=0.0, **gpt2))
    if name == "t5":  # the attention adds to the scores a bias that depends on the distance
        t5: dict[str, Any] = {"vocab_size": 10, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
        return T5EncoderModel(T5Config(dropout_rate=rate, **t5))
    sizes = {"vocab_size": 10, "num_key_value_heads": 1, "attention_dropout": rate, **SIZES}
    if name == "gemma2":  # the attention bounds the scores
        return Gemma2Model(Gemma2Config(head_dim=4, attn_logit_softcapping=1e-3, **sizes))
    if name == "gpt_oss":  # the attention has sinks
        return GptOssModel(GptOssConfig(head_dim=4, num_local_experts=2, num_experts_per_tok=1, **sizes))
    return LlamaModel(LlamaConfig(**sizes))


@pytest.mark.parametrize("name", PATHS)
def test_unfolded_attention_computes_the_same(name: str) -> None:
    """The models have padding, causal masks, fewer heads of keys than of queries, bounded scores and biased scores."""
    module = make_model(name).double().eval()
    if name == "gemma2":  # with transformers 5.17 only "eager" bounds the scores
        module.set_attn_implementation("eager")
    expected = module(input_ids=TOKENS, attention_mask=REAL).last_hidden_state[REAL == 1]
    unfold_attention(module, UnfoldedAttention)
    assert module.config._attn_implementation == UNFOLDED
    outputs = module(input_ids=TOKENS, attention_mask=REAL).last_hidden_state[REAL == 1]
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-6 if name in IN_FLOAT32 else 1e-13)


def test_attention_with_sinks_is_computed_by_the_model() -> None:
    """The same holds in training; the trace records its dropout function."""
    module = make_model("gpt_oss").eval()
    expected = module(input_ids=TOKENS, attention_mask=REAL).last_hidden_state
    unfold_attention(module, UnfoldedAttention)
    torch.testing.assert_close(module(input_ids=TOKENS, attention_mask=REAL).last_hidden_state, expected)
    module.train()
    with ForwardTrace(module) as trace:
        module(input_ids=TOKENS, attention_mask=REAL)
    assert trace.noise == ["layers.0.self_attn (dropout)", "layers.1.self_attn (dropout)"]


def test_models_attention_receives_all_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen = make_model("gpt_oss", 0.25), dict[str, Any]()
    unfold_attention(module, UnfoldedAttention)
    attention, array = module.get_submodule("layers.0.self_attn"), torch.ones(1, 2, 3, 4)
    eager_forward = "transformers.models.gpt_oss.modeling_gpt_oss.eager_attention_forward"
    monkeypatch.setattr(eager_forward, lambda *args, **kwargs: seen.update(kwargs))
    unfolded_attention_forward(
        attention.train(), array, array, array, None, scaling=0.5, position_bias=array, s_aux=array
    )
    assert seen == {"scaling": 0.5, "position_bias": array, "s_aux": array, "dropout": 0.25}


def test_model_without_dropout_is_not_changed() -> None:
    module = make_model("llama", 0.0)
    before = module.config._attn_implementation
    align_dropout(module)
    assert module.config._attn_implementation == before != UNFOLDED


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_probabilities_are_multiplied_by_the_references_mask(name: str) -> None:
    module, path = make_model(name, 0.3).double().train(), PATHS[name]
    keys = derive_example_keys(3, 7, torch.arange(3).numpy())
    align_dropout(module)
    use_dropout_keys(module, torch.from_numpy(keys))
    seen: dict[str, torch.Tensor] = {}
    dropout = module.get_submodule(path)
    dropout.register_forward_hook(lambda _, args, returned: seen.update(before=args[0], after=returned))
    module(input_ids=TOKENS, attention_mask=REAL)
    mask = reference_dropout.mask(keys, path, seen["before"].shape[1:], 0.3)
    torch.testing.assert_close(seen["after"], seen["before"] * torch.from_numpy(mask), rtol=1e-14, atol=0)
