"""Keras's decoders of the zoo: architectures of KerasHub, small and with random weights."""

from typing import Any

import keras
from keras_hub import models

from benchmarks.zoo.text_keras import (
    ENCODER,
    HEADS,
    INNER_WIDTH,
    KEY_HEADS,
    LAYERS,
    POSITIONS,
    SIZES,
    WIDTH,
    Classifier,
)

DECODER: dict[str, Any] = {
    **SIZES,
    "num_query_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "layer_norm_epsilon": 1e-6,
}


def gpt2() -> keras.Model:
    """Return GPT-2."""
    return Classifier(models.GPT2Backbone(**ENCODER))


def opt() -> keras.Model:
    """Return OPT."""
    return Classifier(models.OPTBackbone(**ENCODER))


def gpt_neox() -> keras.Model:
    """Return GPT-NeoX with rotary positions in a quarter of each head."""
    return Classifier(models.GPTNeoXBackbone(**ENCODER, rotary_percentage=0.25))


def bloom() -> keras.Model:
    """Return BLOOM with ALiBi."""
    return Classifier(models.BloomBackbone(**SIZES | {"intermediate_dim": 4 * WIDTH}, num_heads=HEADS))


def falcon() -> keras.Model:
    """Return Falcon-RW with ALiBi."""
    return Classifier(models.FalconBackbone(**SIZES, num_attention_heads=HEADS))


def llama() -> keras.Model:
    """Return LLaMA with grouped-query attention."""
    return Classifier(models.LlamaBackbone(**DECODER))


def llama3() -> keras.Model:
    """Return Llama 3 with its scaled rotary positions."""
    backbone = models.Llama3Backbone(
        **DECODER,
        rope_max_wavelength=500000,
        rope_frequency_adjustment_factor=8.0,
        rope_low_freq_factor=1.0,
        rope_high_freq_factor=4.0,
        rope_pretraining_sequence_length=32,
    )
    return Classifier(backbone)


def mistral() -> keras.Model:
    """Return Mistral with a sliding window."""
    return Classifier(models.MistralBackbone(**DECODER, sliding_window=6))


def mixtral() -> keras.Model:
    """Return Mixtral with four experts."""
    return Classifier(models.MixtralBackbone(**DECODER, num_experts=4, top_k=2, sliding_window=POSITIONS))


def qwen2() -> keras.Model:
    """Return Qwen2."""
    return Classifier(models.QwenBackbone(**DECODER))


def qwen2_moe() -> keras.Model:
    """Return Qwen2-MoE with four experts and a shared one."""
    backbone = models.QwenMoeBackbone(
        **DECODER, moe_intermediate_dim=24, shared_expert_intermediate_dim=40, num_experts=4, top_k=2
    )
    return Classifier(backbone)


def qwen3() -> keras.Model:
    """Return Qwen3 with normalized queries and keys."""
    return Classifier(models.Qwen3Backbone(**DECODER | {"layer_norm_epsilon": 1e-5}, head_dim=16))


def qwen3_moe() -> keras.Model:
    """Return Qwen3-MoE with four experts."""
    backbone = models.Qwen3MoeBackbone(
        **DECODER, moe_intermediate_dim=24, num_experts=4, top_k=2, norm_top_k_prob=True, head_dim=16
    )
    return Classifier(backbone)


def gemma() -> keras.Model:
    """Return Gemma. KerasHub counts the gate and the value in the size of the feed-forward layer."""
    return Classifier(models.GemmaBackbone(**DECODER | {"intermediate_dim": 2 * INNER_WIDTH}, head_dim=16))


def gemma2() -> keras.Model:
    """Return Gemma 2 with bounded attention scores and a sliding window."""
    backbone = models.GemmaBackbone(
        **DECODER | {"intermediate_dim": 2 * INNER_WIDTH},
        head_dim=16,
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
        attention_logit_soft_cap=50.0,
        use_sliding_window_attention=True,
        sliding_window_size=6,
    )
    return Classifier(backbone)


def gemma3() -> keras.Model:
    """Return Gemma 3 with normalized queries and keys and local and global layers."""
    backbone = models.Gemma3Backbone(
        **DECODER | {"num_layers": 6},
        head_dim=16,
        image_size=32,
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
        use_sliding_window_attention=True,
        sliding_window_size=6,
    )
    return Classifier(backbone)


def phi3() -> keras.Model:
    """Return Phi-3."""
    sizes: dict[str, Any] = {"max_sequence_length": POSITIONS, "pretraining_sequence_length": POSITIONS}
    return Classifier(models.Phi3Backbone(**DECODER, **sizes))


def gpt_oss() -> keras.Model:
    """Return GPT-OSS with attention sinks and four experts. A window of KerasHub has one token more than its size."""
    return Classifier(
        models.GptOssBackbone(**DECODER, num_experts=4, top_k=2, sliding_window=5, head_dim=16, rope_scaling_factor=8.0)
    )


def smollm3() -> keras.Model:
    """Return SmolLM3, whose every second layer has no positions."""
    backbone = models.SmolLM3Backbone(
        **SIZES,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        attention_bias=False,
        attention_dropout=0.0,
        rope_layer_enabled_list=[True, False],
        layer_types=["full_attention"] * LAYERS,
        mlp_bias=False,
        layer_norm_epsilon=1e-6,
        max_position_embeddings=POSITIONS,
        rope_theta=10000.0,
        partial_rotary_factor=1.0,
    )
    return Classifier(backbone)


def qwen3_5() -> keras.Model:
    """Return Qwen3.5 with a layer of linear attention and one of full attention."""
    backbone = models.Qwen3_5Backbone(
        **DECODER,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    return Classifier(backbone)
