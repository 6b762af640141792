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
