import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from common.config.schema import Config
from common.errors import UserError
from common.models.bert_settings import OTHER_DEFAULTS, SIZES
from common.models.pretrained import SourceCheckpoint, find_source
from tests.conftest import MakeConfig

FindSource = Callable[..., SourceCheckpoint | None]


@pytest.fixture
def find(make_config: MakeConfig, old_checkpoint: Path) -> FindSource:
    """Call `find_source` for `checkpoint`, which by default is a directory in the format of 2018."""

    def call(*overrides: str, checkpoint: str | Path = old_checkpoint) -> SourceCheckpoint | None:
        config: Config = make_config(
            "model=pretrained", f"model.checkpoint='{checkpoint}'", "train.max_length=32", *overrides
        )
        return find_source(config)

    return call


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def add_head(directory: Path, classes: int) -> None:
    path = directory / "model.safetensors"
    save_file({**load_file(path), "classifier.weight": np.zeros((classes, 8), np.float32)}, path)


def test_random_weights_have_no_source(make_config: MakeConfig) -> None:
    assert find_source(make_config()) is None


def test_a_directory_is_found(find: FindSource, old_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find()
    assert source is not None
    assert (source.directory, source.classes) == (old_checkpoint, None)
    assert source.config["hidden_act"] == "gelu_new"
    monkeypatch.setenv("HOME", str(old_checkpoint.parent))
    expanded = find(checkpoint="~/checkpoint")
    assert expanded is not None and expanded.directory == old_checkpoint


@pytest.mark.parametrize(
    ("id2label", "classes"),
    [({"0": "no", "1": "yes"}, ["no", "yes"]), (None, ["0", "1"]), ({"1": "yes"}, ["0", "yes"])],
)
def test_classes_are_the_classes_of_the_head(
    find: FindSource, old_checkpoint: Path, id2label: dict[str, str] | None, classes: list[str]
) -> None:
    """Names without a head do not count, because every checkpoint without a head has LABEL_0 and LABEL_1."""
    change_config(old_checkpoint, id2label=id2label)
    source = find()
    assert source is not None and source.classes is None
    add_head(old_checkpoint, 2)
    source = find()
    assert source is not None and source.classes == classes


@pytest.mark.parametrize(("problem_type", "classes"), [("single_label_classification", ["0"]), ("regression", None)])
def test_a_head_for_another_problem_is_not_used(
    find: FindSource, old_checkpoint: Path, problem_type: str, classes: list[str] | None
) -> None:
    change_config(old_checkpoint, problem_type=problem_type)
    add_head(old_checkpoint, 1)
    source = find()
    assert source is not None and source.classes == classes


def test_settings_without_an_effect_are_left_out_and_unknown_ones_are_named(
    find: FindSource, old_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They reach no model: with return_dict=false or torchscript=true, transformers returns tuples."""
    change_config(
        old_checkpoint, return_dict=False, torchscript=True, chunk_size_feed_forward=3, gradient_checkpointing=1
    )
    change_config(old_checkpoint, is_decoder=False, position_embedding_type="absolute", pruned_heads={}, auto_map=None)
    source = find()
    assert source is not None and source.config.keys() == {*SIZES, *OTHER_DEFAULTS}
    assert not caplog.messages
    change_config(old_checkpoint, feed_forward_type="geglu", use_rope=True)
    find()
    (warning,) = caplog.messages
    assert warning.endswith("not used, because BERT has no such settings: feed_forward_type, use_rope")


def save_tensorflow_checkpoint(directory: Path) -> None:
    for name in ("checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        (directory / name).write_text("")


def save_run(directory: Path) -> None:
    (directory / "config.yaml").write_text("")
    for name in ("checkpoints/step-00000009", "checkpoints/step-00000010", "model"):
        (directory / name).mkdir(parents=True)


OTHER_KINDS: dict[str, tuple[Callable[[Path], Any], str, str]] = {  # what is there, which path, what the error says
    "a SavedModel": (lambda path: (path / "saved_model.pb").write_text(""), "", "is a TensorFlow SavedModel"),
    "TensorFlow checkpoints": (save_tensorflow_checkpoint, "", "is a directory of TensorFlow checkpoints"),
    "a TensorFlow checkpoint": (save_tensorflow_checkpoint, "/ckpt-1", "is a TensorFlow checkpoint"),
    "a run": (save_run, "", "is a run directory with {path}/checkpoints/step-00000010 and {path}/model"),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_of_checkpoints_are_named(find: FindSource, tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "other"
    directory.mkdir()
    save, path, expected = OTHER_KINDS[kind]
    save(directory)
    with pytest.raises(UserError) as raised:
        find(checkpoint=f"{directory}{path}")
    advice = "give a directory in Hugging Face format, with config.json, model.safetensors and a tokenizer"
    expected = f"model.checkpoint: {directory}{path} {expected.replace('{path}', str(directory))}; {advice}"
    assert str(raised.value) == expected


def test_the_identity_changes_with_the_files(find: FindSource, old_checkpoint: Path) -> None:
    def identities() -> tuple[str, str]:
        source = find()
        assert source is not None
        return json.dumps(source.identify()), json.dumps(source.identify_weights())

    tokenizer, weights = identities()
    assert identities() == (tokenizer, weights)
    os.utime(old_checkpoint / "model.safetensors", ns=(1, 1))
    assert identities()[0] == tokenizer
    assert identities()[1] != weights
    os.utime(old_checkpoint / "vocab.txt", ns=(1, 1))
    assert identities()[0] != tokenizer


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda path: (path / "config.json").unlink(), "{path} has no config.json; give a directory"),
    "broken config": (lambda path: truncate(path / "config.json"), "{path}/config.json cannot be read ("),
    "config of a list": (lambda path: (path / "config.json").write_text("[]"), "{path}/config.json is not an object"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "{path} has no weights (*.safetensors; pickled"),
    "broken weights": (lambda path: truncate(path / "model.safetensors"), "{path}/model.safetensors cannot be read ("),
    "another model": (lambda path: change_config(path, model_type="gpt2"), "{path} is a gpt2 model; Lockstep trains b"),
    "activation": (lambda path: change_config(path, hidden_act="silu"), "hidden_act silu is not one of gelu, "),
    "decoder": (
        lambda path: change_config(path, is_decoder=True),
        "{path}/config.json: is_decoder=True: Lockstep trains a BERT with is_decoder=False only; give another",
    ),
    "relative positions": (
        lambda path: change_config(path, position_embedding_type="relative_key_query"),
        "{path}/config.json: position_embedding_type=relative_key_query: Lockstep trains a BERT with position_em",
    ),
    "cross-attention": (
        lambda path: change_config(path, add_cross_attention=True),
        "{path}/config.json: add_cross_attention=True: ",
    ),
    "pruned heads": (lambda path: change_config(path, pruned_heads={"0": [1]}), "{path}/config.json: pruned_heads={'0"),
    "quantized": (
        lambda path: change_config(path, quantization_config={"load_in_8bit": True}),
        "{path}/config.json: quantization_config={'load_in_8bit': True}: ",
    ),
    "code": (
        lambda path: change_config(path, auto_map={"AutoModel": "m.JinaBert"}),
        "{path}/config.json: auto_map={'A",
    ),
    "an activation of another type": (lambda path: change_config(path, hidden_act=["relu"]), "hidden_act ['relu'] is"),
    "epsilon": (
        lambda path: change_config(path, layer_norm_eps="1e-12"),
        "{path}/config.json: layer_norm_eps=1e-12: mu",
    ),
    "heads": (
        lambda path: change_config(path, num_attention_heads=3),
        "{path}/config.json: num_attention_heads=3: must",
    ),
    "a number that is none": (
        lambda path: change_config(path, num_hidden_layers=True),
        "{path}/config.json has no num_",
    ),
    "no size": (lambda path: change_config(path, hidden_size=None), "{path}/config.json has no hidden_size; is it"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoints_are_refused(find: FindSource, old_checkpoint: Path, damage: str) -> None:
    do_damage, expected = DAMAGES[damage]
    do_damage(old_checkpoint)
    with pytest.raises(UserError) as raised:
        find()
    assert str(raised.value).startswith("model.checkpoint: " + expected.replace("{path}", str(old_checkpoint)))
    assert "\n" not in str(raised.value)


def test_max_length_beyond_the_positions_is_refused(find: FindSource) -> None:
    with pytest.raises(UserError, match=r"^train.max_length=33: beyond the model's 32 positions; lower it$"):
        find("train.max_length=33")


@pytest.mark.parametrize("checkpoint", ["missing", "/not/there", "a/b/c", "{path}/config.json"])
def test_a_name_that_is_no_directory_and_no_hub_id_is_refused(
    find: FindSource, old_checkpoint: Path, checkpoint: str
) -> None:
    checkpoint = checkpoint.replace("{path}", str(old_checkpoint))
    with pytest.raises(UserError) as raised:
        find(checkpoint=checkpoint)
    assert (
        str(raised.value) == f"model.checkpoint={checkpoint}: neither a directory nor a hub id (owner/name); give one"
    )


def test_hub_ids_are_downloaded(find: FindSource, old_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def download(name: str, revision: str | None) -> Path:
        requests.append((name, revision))
        return old_checkpoint

    monkeypatch.setattr("common.models.pretrained.download_checkpoint", download)
    source = find("model.revision=v1", checkpoint="owner/name")
    assert source is not None and source.directory == old_checkpoint
    assert requests == [("owner/name", "v1")]
