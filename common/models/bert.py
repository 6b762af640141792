"""The spec of BERT: its config.json, the shapes of its parameters, and their initial values, random or pretrained."""

import logging
import re

import numpy as np

from common.config.models import BertSettings, RandomBertSettings
from common.config.schema import Config
from common.data.cache import Cache
from common.data.text.token_cache import TokenCache
from common.errors import UserError
from common.models.hf_config import HfConfig
from common.models.pretrained import SourceCheckpoint
from common.models.tensor_names import remove_wrappers
from common.models.weight_files import FLOAT_TYPES, read_weight_files

log = logging.getLogger("lockstep")

ENCODER_NAMES = ("bert.embeddings.", "bert.encoder.", "bert.pooler.")
# Buffers without information, which older versions of transformers stored
BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
LISTED = 3  # number of tensors that a warning lists by name


def build_hf_config(config: Config, cache: Cache, source: SourceCheckpoint | None) -> HfConfig:
    """Return the model's config.json. Its sizes come from the config, or from the pretrained checkpoint `source`.

    Raises:
        UserError: The tokenizer of the checkpoint has more tokens than its embeddings have rows, or the data has more
            segments.
    """
    assert isinstance(config.model, BertSettings) and isinstance(cache, TokenCache)
    if isinstance(config.model, RandomBertSettings):
        settings: HfConfig = {
            "vocab_size": cache.vocabulary,
            "hidden_size": config.model.hidden_size,
            "num_hidden_layers": config.model.layers,
            "num_attention_heads": config.model.heads,
            "intermediate_size": config.model.intermediate_size,
            "hidden_act": config.model.hidden_act,
            "max_position_embeddings": config.model.max_positions,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
        }
    else:
        assert source is not None
        settings = source.config
        _check_tokens(settings, cache)
    return {
        "model_type": "bert",
        **settings,
        "pad_token_id": cache.train.pad_id,
        "architectures": ["BertForSequenceClassification"],
        "hidden_dropout_prob": config.model.dropout,
        "attention_probs_dropout_prob": config.model.dropout,
        "classifier_dropout": config.model.dropout,
        "id2label": dict(enumerate(cache.classes)),
        "label2id": {name: index for index, name in enumerate(cache.classes)},
    }


def _check_tokens(settings: HfConfig, cache: TokenCache) -> None:
    """Raise UserError if the data has tokens or segments that the embeddings of a checkpoint have no rows for."""
    if cache.vocabulary > settings["vocab_size"]:
        raise UserError(
            f"model.checkpoint: its tokenizer has {cache.vocabulary} tokens, its embeddings {settings['vocab_size']}; "
            "give a checkpoint whose tokenizer fits"
        )
    if settings["type_vocab_size"] < 2 and any(split.has_pairs() for split in (cache.train, cache.validation)):
        raise UserError(
            f"model.checkpoint: type_vocab_size={settings['type_vocab_size']}: the data has pairs, which need 2 types "
            "of tokens; set data.hypothesis=null for single sentences, or give another checkpoint"
        )


def get_parameter_shapes(hf_config: HfConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of BertForSequenceClassification's parameters by name, in PyTorch's layout (out, in)."""
    hidden, inner = hf_config["hidden_size"], hf_config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (hf_config["vocab_size"], hidden),
        "bert.embeddings.position_embeddings.weight": (hf_config["max_position_embeddings"], hidden),
        "bert.embeddings.token_type_embeddings.weight": (hf_config["type_vocab_size"], hidden),
    }

    def add_layer_norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)

    def add_linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    add_layer_norm("bert.embeddings.LayerNorm")
    for index in range(hf_config["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{index}"
        for projection in ("self.query", "self.key", "self.value", "output.dense"):
            add_linear(f"{layer}.attention.{projection}", hidden, hidden)
        add_layer_norm(f"{layer}.attention.output.LayerNorm")
        add_linear(f"{layer}.intermediate.dense", hidden, inner)
        add_linear(f"{layer}.output.dense", inner, hidden)
        add_layer_norm(f"{layer}.output.LayerNorm")
    add_linear("bert.pooler.dense", hidden, hidden)
    add_linear("classifier", hidden, len(hf_config["id2label"]))
    return shapes


def list_transformations(hf_config: HfConfig) -> list[str]:
    """Return the transformation of each Keras variable from PyTorch's parameters, as a map file has it.

    Keras's attention has an axis for the heads.
    """
    heads, hidden = hf_config["num_attention_heads"], hf_config["hidden_size"]
    divided = f"{heads} {hidden // heads}"
    texts = []
    for name, shape in get_parameter_shapes(hf_config).items():
        steps = ["transpose 1 0"] if len(shape) == 2 and ".embeddings." not in name else []
        if ".attention.self." in name:
            steps.append(f"reshape {hidden} {divided}" if steps else f"reshape {divided}")
        elif name.endswith(".attention.output.dense.weight"):
            steps.append(f"reshape {divided} {hidden}")
        texts.append(" | ".join([name, *steps]))
    return texts


def count_useful_flops(hf_config: HfConfig, lengths: np.ndarray) -> np.ndarray:
    """Count the floating-point operations of the matrix products that training on examples needs.

    A multiplication with its addition counts as two operations. The forward pass multiplies every token with the
    weights of the encoder's linear layers, every query with every key, every probability with every value, and the
    first token with the weights of the pooler and the classifier. The backward pass computes two products for each
    product of the forward pass. Padding is not counted.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021),
    appendix.

    Args:
        hf_config: the model's config.json.
        lengths: the number of real tokens of each example, [n].

    Returns:
        Operations for each example, float64 [n].
    """
    hidden, inner, layers = (hf_config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    tokens = lengths.astype(np.float64)
    linear = 2 * layers * (4 * hidden**2 + 2 * hidden * inner) * tokens
    attention = 4 * layers * hidden * tokens**2
    head = 2 * hidden * (hidden + len(hf_config["id2label"]))
    forward: np.ndarray = linear + attention + head
    return 3 * forward


def draw_parameter(hf_config: HfConfig, name: str, shape: tuple[int, ...], stream: np.random.Generator) -> np.ndarray:
    """Return a random initial value as BERT defines it.

    Weights are normal(0, initializer_range), biases 0, LayerNorm 1 and 0, and the embedding of padding is 0.
    """
    if name.endswith("LayerNorm.weight"):
        return np.ones(shape, np.float32)
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    parameter = (stream.standard_normal(shape) * hf_config["initializer_range"]).astype(np.float32)
    if name == "bert.embeddings.word_embeddings.weight":
        parameter[hf_config.get("pad_token_id") or 0] = 0
    return parameter


def read_pretrained(source: SourceCheckpoint, drawn: dict[str, np.ndarray], keeps_head: bool) -> dict[str, np.ndarray]:
    """Return the weights of a checkpoint by the names that transformers uses today.

    Args:
        source: the checkpoint.
        drawn: random values of all parameters, for names and shapes. The checkpoint may lack the classifier and the
            pooler; the result then lacks them too, so the caller keeps their random values.
        keeps_head: whether the classifier of the checkpoint is for the classes of the data. Otherwise the result has no
            classifier.

    Raises:
        UserError: another parameter is missing, or a parameter has another shape or type, or the checkpoint has a
            parameter that this BERT lacks.
    """
    weights, unused = {}, []
    for stored_name, tensor in read_weight_files(source.directory).items():
        name = _rename(stored_name)
        if name not in drawn:
            unused.append(stored_name)
        elif keeps_head or not name.startswith("classifier."):
            _check_tensor(name, tensor, drawn[name])
            weights[name] = np.ascontiguousarray(tensor, np.float32)
    for name in drawn:
        if name not in weights and not re.match(r"(classifier|bert\.pooler)\.", name):
            raise UserError(f"model.checkpoint: {source.directory} has no weights for {name}; is it a complete BERT?")
    _report_unused(source, unused)
    return weights


def _rename(stored_name: str) -> str:
    """Return the name that transformers uses today. Older checkpoints lack its prefix, or have TensorFlow's names."""
    name = remove_wrappers(stored_name).removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith("classifier.") else f"bert.{name}"


def _check_tensor(name: str, tensor: np.ndarray, expected: np.ndarray) -> None:
    """Raise UserError if a tensor of a checkpoint has another shape or type than the parameter of this name."""
    if tensor.shape != expected.shape:
        raise UserError(
            f"model.checkpoint: {name} is {tensor.shape}, not {expected.shape} as its config.json says; fetch it again"
        )
    if tensor.dtype.name not in FLOAT_TYPES:
        raise UserError(
            f"model.checkpoint: {name} is {tensor.dtype.name}, possibly quantized; give one of {', '.join(FLOAT_TYPES)}"
        )


def _report_unused(source: SourceCheckpoint, names: list[str]) -> None:
    """Log a checkpoint's unused tensors of other heads. Raise UserError for an unused tensor of the encoder."""
    heads = []
    for name in names:
        renamed = _rename(name)
        if renamed.startswith(ENCODER_NAMES) and renamed not in BUFFERS:
            raise UserError(
                f"model.checkpoint: {source.directory} has the tensor {name}, which the BERT of its config.json does "
                "not have; correct config.json or give another checkpoint"
            )
        heads += [] if renamed in BUFFERS else [name]
    if heads:
        more = f" and {len(heads) - LISTED} more" if len(heads) > LISTED else ""
        log.warning("model.checkpoint: tensors of other heads are not used: %s%s", ", ".join(heads[:LISTED]), more)
