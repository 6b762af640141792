"""Pairs of models of transformers and of KerasHub that read tokens or sounds."""

from benchmarks.zoo.pairs import ZooPair

TOKENS = {"token_ids": "int32[4,12]>4<98"}
SEQUENCES = {"encoder_ids": "int32[4,12]>4<98", "decoder_ids": "int32[4,8]>4<98"}
SOUNDS = {"features": "float32[4,32,8]", "decoder_ids": "int32[4,8]>4<98"}
# The function of both modules, the class of transformers and the class of KerasHub.
ENCODERS = (
    ("bert", "BertModel", "BertBackbone"),
    ("distilbert", "DistilBertModel", "DistilBertBackbone"),
    ("albert", "AlbertModel", "AlbertBackbone"),
    ("electra", "ElectraModel", "ElectraBackbone"),
    ("electra_exact", "ElectraModel", "ElectraBackbone"),
    ("roberta", "RobertaModel", "RobertaBackbone"),
    ("xlm_roberta", "XLMRobertaModel", "XLMRobertaBackbone"),
    ("deberta_v3", "DebertaV2Model", "DebertaV3Backbone"),
    ("fnet", "FNetModel", "FNetBackbone"),
    ("esm", "EsmModel", "ESMBackbone"),
    ("clip_text", "CLIPTextModel", "CLIPTextEncoder"),
    ("siglip_text", "SiglipTextModel", "SigLIPTextEncoder"),
    ("metaclip2_text", "MetaClip2TextModel", "MetaCLIP2TextEncoder"),
)
DECODERS = (
    ("gpt2", "GPT2Model", "GPT2Backbone"),
    ("opt", "OPTModel", "OPTBackbone"),
    ("gpt_neox", "GPTNeoXModel", "GPTNeoXBackbone"),
    ("bloom", "BloomModel", "BloomBackbone"),
    ("falcon", "FalconModel", "FalconBackbone"),
    ("llama", "LlamaModel", "LlamaBackbone"),
    ("llama3", "LlamaModel", "Llama3Backbone"),
    ("mistral", "MistralModel", "MistralBackbone"),
    ("mixtral", "MixtralModel", "MixtralBackbone"),
    ("qwen2", "Qwen2Model", "QwenBackbone"),
    ("qwen2_moe", "Qwen2MoeModel", "QwenMoeBackbone"),
    ("qwen3", "Qwen3Model", "Qwen3Backbone"),
    ("qwen3_moe", "Qwen3MoeModel", "Qwen3MoeBackbone"),
    ("qwen3_5", "Qwen3_5TextModel", "Qwen3_5Backbone"),
    ("gemma", "GemmaModel", "GemmaBackbone"),
    ("gemma2", "Gemma2Model", "GemmaBackbone"),
    ("gemma3", "Gemma3TextModel", "Gemma3Backbone"),
    ("phi3", "Phi3Model", "Phi3Backbone"),
    ("gpt_oss", "GptOssModel", "GptOssBackbone"),
    ("smollm3", "SmolLM3Model", "SmolLM3Backbone"),
)
ENCODER_DECODERS = (
    ("bart", "BartModel", "BartBackbone", SEQUENCES),
    ("t5", "T5Model", "T5Backbone", SEQUENCES),
    ("t5_gated", "T5Model", "T5Backbone", SEQUENCES),
    ("whisper", "WhisperModel", "WhisperBackbone", SOUNDS),
)


def _pair(modules: str, name: str, torch_class: str, keras_class: str, inputs: dict[str, str]) -> ZooPair:
    torch, keras = (f"benchmarks.zoo.{modules}_{side}:{name}" for side in ("torch", "keras"))
    return ZooPair(name, torch, keras, inputs, f"transformers {torch_class}", f"KerasHub {keras_class}")


TEXT_PAIRS = (
    *(_pair("text", *model, TOKENS) for model in ENCODERS),
    *(_pair("decoder", *model, TOKENS) for model in DECODERS),
    *(_pair("sequence", *model) for model in ENCODER_DECODERS),
)
