"""PyTorch's decoders of the zoo: architectures of transformers, small and with random weights."""

from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from benchmarks.zoo.text_torch import (
    HEADS,
    INNER_WIDTH,
    KEY_HEADS,
    LAYERS,
    POSITIONS,
    SIZES,
    VOCABULARY,
    WIDTH,
    Classifier,
)

DECODER: dict[str, Any] = {
    **SIZES,
    "num_key_value_heads": KEY_HEADS,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "use_cache": False,
}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}  # the fused function has neither bounds nor sinks
ROTARY: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def _classify(architecture: str, config: PreTrainedConfig) -> Classifier:
    model_class: type[PreTrainedModel] = getattr(transformers, f"{architecture}Model")
    return Classifier(model_class(config))


def gpt2() -> nn.Module:
    """Return GPT-2."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=INNER_WIDTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return Classifier(transformers.GPT2Model(config))


def opt() -> nn.Module:
    """Return OPT, whose positions begin at 2."""
    config = transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        ffn_dim=INNER_WIDTH,
        num_attention_heads=HEADS,
        max_position_embeddings=POSITIONS,
        word_embed_proj_dim=WIDTH,
        dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    return Classifier(transformers.OPTModel(config))


def gpt_neox() -> nn.Module:
    """Return GPT-NeoX with rotary positions in a quarter of each head and the tanh approximation of GELU."""
    config = transformers.GPTNeoXConfig(
        **SIZES,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        hidden_act="gelu_new",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    return Classifier(transformers.GPTNeoXModel(config))


def bloom() -> nn.Module:
    """Return BLOOM with ALiBi."""
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    return Classifier(transformers.BloomModel(config))


def falcon() -> nn.Module:
    """Return Falcon-RW with ALiBi."""
    config = transformers.FalconConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        ffn_hidden_size=INNER_WIDTH,
        alibi=True,
        bias=True,
        multi_query=False,
        parallel_attn=False,
        new_decoder_architecture=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    return Classifier(transformers.FalconModel(config))


def llama() -> nn.Module:
    """Return LLaMA with grouped-query attention."""
    return _classify("Llama", transformers.LlamaConfig(**DECODER, **ROTARY))


def llama3() -> nn.Module:
    """Return Llama 3 with its scaled rotary positions."""
    rotary: dict[str, Any] = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    return _classify("Llama", transformers.LlamaConfig(**DECODER, rope_parameters=rotary))


def mistral() -> nn.Module:
    """Return Mistral with a sliding window."""
    return _classify("Mistral", transformers.MistralConfig(**DECODER, **ROTARY, sliding_window=6))


def mixtral() -> nn.Module:
    """Return Mixtral with four experts."""
    experts: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return _classify("Mixtral", transformers.MixtralConfig(**DECODER, **ROTARY, **experts, sliding_window=POSITIONS))


def qwen2() -> nn.Module:
    """Return Qwen2."""
    return _classify("Qwen2", transformers.Qwen2Config(**DECODER, **ROTARY))


def qwen2_moe() -> nn.Module:
    """Return Qwen2-MoE with four experts and a shared one."""
    experts: dict[str, Any] = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "norm_topk_prob": False,
    }
    return _classify("Qwen2Moe", transformers.Qwen2MoeConfig(**DECODER, **ROTARY, **experts))


def qwen3() -> nn.Module:
    """Return Qwen3 with normalized queries and keys. KerasHub's have an epsilon of 1e-5, whatever the others have."""
    return _classify("Qwen3", transformers.Qwen3Config(**DECODER | {"rms_norm_eps": 1e-5}, **ROTARY, head_dim=16))


def qwen3_moe() -> nn.Module:
    """Return Qwen3-MoE with four experts."""
    experts: dict[str, Any] = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "head_dim": 16,
    }
    return _classify("Qwen3Moe", transformers.Qwen3MoeConfig(**DECODER, **ROTARY, **experts))


def gemma() -> nn.Module:
    """Return Gemma."""
    return _classify("Gemma", transformers.GemmaConfig(**DECODER, **ROTARY, head_dim=16))


def gemma2() -> nn.Module:
    """Return Gemma 2 with bounded attention scores and a sliding window."""
    config = transformers.Gemma2Config(
        **DECODER,
        **ROTARY,
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=None,
        sliding_window=6,
        **EAGER,
    )
    return _classify("Gemma2", config)


def gemma3() -> nn.Module:
    """Return Gemma 3 with normalized queries and keys and local and global layers."""
    config = transformers.Gemma3TextConfig(
        **DECODER | {"num_hidden_layers": 6},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=6,
    )
    return Classifier(transformers.Gemma3TextModel(config))


def phi3() -> nn.Module:
    """Return Phi-3 with fused projections."""
    config = transformers.Phi3Config(
        **DECODER,
        **ROTARY,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        original_max_position_embeddings=POSITIONS,
        pad_token_id=0,
        sliding_window=None,
    )
    return _classify("Phi3", config)


def gpt_oss() -> nn.Module:
    """Return GPT-OSS with attention sinks and four experts. KerasHub's second layer has the sliding window."""
    rotary: dict[str, Any] = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    config = transformers.GptOssConfig(
        **DECODER,
        rope_parameters=rotary,
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        sliding_window=6,
        layer_types=["full_attention", "sliding_attention"],
        **EAGER,
    )
    return _classify("GptOss", config)


def smollm3() -> nn.Module:
    """Return SmolLM3, whose every second layer has no positions."""
    config = transformers.SmolLM3Config(**DECODER, **ROTARY, no_rope_layers=[1, 0], pad_token_id=0)
    return _classify("SmolLM3", config)


def qwen3_5() -> nn.Module:
    """Return Qwen3.5 with a layer of linear attention and one of full attention."""
    config = transformers.Qwen3_5TextConfig(
        **DECODER,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    return _classify("Qwen3_5Text", config)
