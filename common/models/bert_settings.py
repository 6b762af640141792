"""The settings in the config.json of a BERT checkpoint: which of them Lockstep computes, refuses, or ignores.

The settings that are listed here are those of transformers' BertConfig, in all of its versions. Lockstep computes one
kind of BERT, and refuses settings that ask for another kind.
"""

import logging
from pathlib import Path

from common.config.models import ACTIVATIONS
from common.errors import UserError
from common.models.hf_config import HfConfig

log = logging.getLogger("lockstep")

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
OTHER_DEFAULTS = {"hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12}
# Settings that change what the model computes, with the value that Lockstep computes. A missing one has that value.
FIXED: dict[str, object] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": None,
    "per_layer_config": None,
    "auto_map": None,  # code of the checkpoint that computes the model instead of transformers
}
# Settings without an effect on the outputs, or that other keys replace: model.dropout, train.precision, data.classes
UNUSED_NAMES = """
_name_or_path name_or_path model_type architectures transformers_version tokenizer_class
adapter_transformers_version dtype torch_dtype use_bfloat16 attn_implementation _attn_implementation
_attn_implementation_autoset hidden_dropout_prob attention_probs_dropout_prob classifier_dropout
id2label label2id num_labels _num_labels problem_type finetuning_task task_specific_params
pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id
decoder_start_token_id use_cache output_past output_hidden_states output_attentions return_dict
torchscript tf_legacy_loss xla_device gradient_checkpointing chunk_size_feed_forward
tie_word_embeddings tie_encoder_decoder tie_last_hidden_states cross_attention_hidden_size
is_composition language name model_max_length directionality pooler_fc_size
pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type max_length
min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k
top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
begin_suppress_tokens prefix
"""
UNUSED = frozenset(UNUSED_NAMES.split())


def select_settings(hf_config: HfConfig, path: Path) -> HfConfig:
    """Return the settings that Lockstep computes, with their defaults.

    Settings that transformers' BERT does not have are named in a warning.

    Args:
        hf_config: The contents of config.json.
        path: Its path, for errors.

    Raises:
        UserError: A setting asks for another model than the BERT that Lockstep computes, or has no valid value.
    """
    for name, value in FIXED.items():
        if hf_config.get(name) not in (None, value):
            raise UserError(
                f"model.checkpoint: {path}: {name}={_shorten(hf_config[name])}: Lockstep trains a BERT with "
                f"{name}={_shorten(value)} only; give another checkpoint"
            )
    settings = {name: hf_config.get(name) for name in SIZES}
    stored = {name: hf_config.get(name) for name in OTHER_DEFAULTS}
    settings |= {name: OTHER_DEFAULTS[name] if value is None else value for name, value in stored.items()}
    _check_values(settings, path)
    unknown = sorted(hf_config.keys() - settings.keys() - FIXED.keys() - UNUSED)
    if unknown:
        log.warning("model.checkpoint: %s: not used, because BERT has no such settings: %s", path, ", ".join(unknown))
    return settings


def _check_values(settings: HfConfig, path: Path) -> None:
    """Raise UserError if a setting that Lockstep computes is missing or has no valid value."""
    if missing := [name for name in SIZES if type(settings[name]) is not int or settings[name] < 1]:
        raise UserError(f"model.checkpoint: {path} has no {', '.join(missing)}; is it a complete BERT?")
    if settings["hidden_act"] not in ACTIVATIONS:
        raise UserError(
            f"model.checkpoint: hidden_act {settings['hidden_act']} is not one of {', '.join(ACTIVATIONS)}; give "
            "another"
        )
    for name in ("initializer_range", "layer_norm_eps"):
        value = settings[name]
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise UserError(
                f"model.checkpoint: {path}: {name}={_shorten(value)}: must be at least 0 and below 1; correct it"
            )
    if settings["hidden_size"] % settings["num_attention_heads"]:
        raise UserError(
            f"model.checkpoint: {path}: num_attention_heads={settings['num_attention_heads']}: must divide "
            f"hidden_size={settings['hidden_size']}; correct it"
        )


def _shorten(value: object) -> str:
    text = str(value).replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."
