"""Initial weights of BERT, random or from a pretrained checkpoint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from common.errors import UserError
from common.models.bert import count_useful_flops, get_parameter_shapes
from tests.unit.common.models.conftest import OpenInitial, list_equal_parameters

WORDS = "bert.embeddings.word_embeddings.weight"


def test_random_weights_have_the_distribution_of_bert(open_random: OpenInitial) -> None:
    for name, parameter in open_random("model.hidden_size=64", "model.max_positions=128").weights().items():
        assert parameter.dtype == np.float32
        if name.endswith(".bias"):
            assert not parameter.any(), name
        elif "LayerNorm" in name:
            assert (parameter == 1).all(), name
        elif name == WORDS:
            assert not parameter[0].any()
            assert parameter[1:].std() == pytest.approx(0.02, rel=0.05)
        else:
            assert abs(parameter.mean()) < 4 * 0.02 / parameter.size**0.5, name
            assert parameter.std() == pytest.approx(0.02, rel=4 / (2 * parameter.size) ** 0.5), name


@pytest.mark.slow
def test_names_and_shapes_are_those_of_transformers(open_random: OpenInitial, open_pretrained: OpenInitial) -> None:
    from transformers import BertForSequenceClassification

    settings = []
    for checkpoint in (open_random("model.dropout=0.2", "model.hidden_act=relu"), open_pretrained()):
        model: Any = BertForSequenceClassification.from_pretrained(checkpoint.directory)
        shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
        written = {name: parameter.shape for name, parameter in checkpoint.weights().items()}
        assert written == get_parameter_shapes(checkpoint.hf_config) == shapes
        config = model.config
        dropout = (config.hidden_dropout_prob, config.classifier_dropout)
        settings.append((config.hidden_act, config.num_labels, config.id2label[1], config.layer_norm_eps, *dropout))
    assert settings == [("relu", 3, "neutral", 1e-12, 0.2, 0.2), ("gelu_new", 3, "neutral", 1e-12, 0.0, 0.0)]


def test_a_pretrained_encoder_gets_the_current_names(open_pretrained: OpenInitial, old_checkpoint: Path) -> None:
    source, weights = load_file(old_checkpoint / "model.safetensors"), open_pretrained().weights()
    head = {name for name in weights if name.startswith(("classifier.", "bert.pooler."))}
    assert len(head) == 4
    for name, parameter in weights.items():
        if name not in head:
            old_name = name.removeprefix("bert.").replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
            assert np.array_equal(parameter, source.pop(old_name).astype(np.float32)), name
            assert parameter.dtype == np.float32
    assert source.keys() == {"cls.predictions.bias"}


def test_a_missing_head_is_drawn(open_pretrained: OpenInitial) -> None:
    weights, other = open_pretrained().weights(), open_pretrained("train.seed=1").weights()
    assert weights.keys() - list_equal_parameters(weights, other) == {"classifier.weight", "bert.pooler.dense.weight"}
    assert weights["classifier.weight"].shape == (3, 8)
    assert 0.01 < weights["classifier.weight"].std() < 0.03
    assert not weights["classifier.bias"].any()


@pytest.mark.slow
def test_a_head_and_prefixes_of_the_checkpoint_are_used(open_pretrained: OpenInitial, old_checkpoint: Path) -> None:
    path = old_checkpoint / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(path).items()}
    head = {"classifier.weight": np.full((3, 8), 2.0, np.float32), "classifier.bias": np.full(3, 3.0, np.float32)}
    before = open_pretrained().weights()
    save_file({**tensors, **head}, path)
    hf_config = json.loads((old_checkpoint / "config.json").read_text())
    names = {str(index): name for index, name in enumerate(("contradiction", "neutral", "entailment"))}
    (old_checkpoint / "config.json").write_text(json.dumps({**hf_config, "id2label": names}))
    checkpoint = open_pretrained()
    assert before.keys() - list_equal_parameters(before, checkpoint.weights()) == head.keys()
    assert head.keys() == list_equal_parameters(head, checkpoint.weights())
    assert checkpoint.hf_config["id2label"] == names, "the order of the checkpoint decides"
    assert checkpoint.hf_config["label2id"] == {"contradiction": 0, "neutral": 1, "entailment": 2}
    assert "torch_dtype" not in checkpoint.hf_config


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("encoder.layer.0.output.dense.bias", None, "has no weights for bert.encoder.layer.0.output.dense.bias; is it"),
        ("embeddings.position_embeddings.weight", (16, 8), "is (16, 8), not (32, 8) as its config.json says"),
        ("embeddings.word_embeddings.weight", (9, 8), "is (9, 8), not (15, 8) as its config.json says"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    open_pretrained: OpenInitial, old_checkpoint: Path, name: str, shape: tuple[int, int] | None, expected: str
) -> None:
    path = old_checkpoint / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors if shape is None else {**tensors, name: np.zeros(shape, np.float32)}, path)
    with pytest.raises(UserError, match=r"^model.checkpoint: ") as raised:
        open_pretrained()
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        (
            "encoder.layer.1.output.dense.bias",
            np.float32,
            "has the tensor encoder.layer.1.output.dense.bias, which the B",
        ),
        (
            "bert.encoder.layer.0.attention.self.distance_embedding.weight",
            np.float32,
            "distance_embedding.weight, which ",
        ),
        (
            "encoder.layer.0.output.dense.bias",
            np.int8,
            "bert.encoder.layer.0.output.dense.bias is int8, possibly quant",
        ),
    ],
)
def test_tensors_that_this_bert_lacks_are_refused(
    open_pretrained: OpenInitial, old_checkpoint: Path, name: str, dtype: type, expected: str
) -> None:
    path = old_checkpoint / "model.safetensors"
    save_file({**load_file(path), name: np.zeros(8, dtype)}, path)
    with pytest.raises(UserError, match=f"^model.checkpoint: .*{expected}"):
        open_pretrained()


def test_tensors_of_other_heads_are_named(
    open_pretrained: OpenInitial, old_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = old_checkpoint / "model.safetensors"
    more: dict[str, np.ndarray] = {
        "embeddings.position_ids": np.arange(32)[None],
        "qa_outputs.bias": np.ones(2, np.float32),
    }
    save_file({**load_file(path), **more}, path)
    open_pretrained()
    warning = "model.checkpoint: tensors of other heads are not used: cls.predictions.bias, qa_outputs.bias"
    assert caplog.messages.count(warning) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_of_every_floating_type_are_read(
    open_pretrained: OpenInitial, old_checkpoint: Path, dtype: str
) -> None:
    """Other files beside the weights, such as an optimizer's slots, are not read. Wrappers of PyTorch do not count."""
    path, name = old_checkpoint / "model.safetensors", "encoder.layer.0.output.dense.bias"
    tensors = {f"_orig_mod.module.{name}": array.astype(np.dtype(dtype)) for name, array in load_file(path).items()}
    save_file(tensors, path)
    save_file({f"bert.{name}": np.zeros(8, np.float32)}, old_checkpoint / "optimizer.safetensors")
    bias = open_pretrained().weights()[f"bert.{name}"]
    assert bias.dtype == np.float32 and bias.any()
    assert np.array_equal(bias, tensors[f"_orig_mod.module.{name}"].astype(np.float32))


def test_a_head_of_other_classes_is_replaced(
    open_pretrained: OpenInitial, old_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = old_checkpoint / "model.safetensors"
    drawn = open_pretrained().weights()
    head = {"classifier.weight": np.full((1, 8), 2.0, np.float32), "classifier.bias": np.full(1, 3.0, np.float32)}
    save_file({**load_file(path), **head}, path)
    weights = open_pretrained().weights()
    assert list_equal_parameters(weights, drawn) == drawn.keys()
    classes = ["entailment", "neutral", "contradiction"]
    warning = f"model.checkpoint: its head has the classes ['0'], the data has {classes}; a new head is drawn"
    assert caplog.messages.count(warning) == 1


def test_pairs_need_two_types_of_tokens(open_pretrained: OpenInitial, old_checkpoint: Path) -> None:
    path, name = old_checkpoint / "model.safetensors", "embeddings.token_type_embeddings.weight"
    save_file({**load_file(path), name: np.zeros((1, 8), np.float16)}, path)
    config = old_checkpoint / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "type_vocab_size": 1}))
    with pytest.raises(UserError, match=r"^model.checkpoint: type_vocab_size=1: the data has pairs"):
        open_pretrained()


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(
    open_pretrained: OpenInitial, old_checkpoint: Path
) -> None:
    path = old_checkpoint / "vocab.txt"
    path.write_text(path.read_text() + "more\n")
    with pytest.raises(UserError, match=r"^model.checkpoint: its tokenizer has 16 tokens, its embeddings 15; "):
        open_pretrained()


def test_useful_flops_equal_a_count_by_hand() -> None:
    """Two layers, hidden size 4, intermediate size 6, 3 classes; examples of 2 and of 5 tokens."""
    hf_config = {"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2, "id2label": {0: "a", 1: "b", 2: "c"}}

    def multiplications(tokens: int) -> int:
        layer = 4 * tokens * 4 * 4  # query, key, value, output
        layer += tokens * tokens * 4 + tokens * tokens * 4  # scores, and their product with the values
        layer += tokens * 4 * 6 + tokens * 6 * 4
        return 2 * layer + 4 * 4 + 4 * 3

    expected = [3 * 2 * multiplications(tokens) for tokens in (2, 5)]
    assert count_useful_flops(hf_config, np.array([2, 5])).tolist() == expected


def test_useful_flops_of_long_examples_do_not_overflow() -> None:
    hf_config = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "id2label": {0: "a"}}
    (flops,) = count_useful_flops(hf_config, np.array([100_000], np.int32))
    assert flops > 1e15
