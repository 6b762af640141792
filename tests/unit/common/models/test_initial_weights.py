"""The file of initial weights: the same for the same config, and built again if it is damaged."""

import logging
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.models.initial_weights import reopen_initial_checkpoint
from tests.unit.common.models.conftest import OpenInitial, list_equal_parameters

pytestmark = pytest.mark.slow

WORDS = "bert.embeddings.word_embeddings.weight"


def test_the_same_config_gives_the_same_file(open_random: OpenInitial, tmp_path: Path) -> None:
    first = open_random()
    other = open_random(f"cache_dir={tmp_path / 'another'}", "optimizer=sgd", "train.steps=7")
    assert first.directory != other.directory
    assert (first.fingerprint, first.directory.name) == (other.fingerprint, other.directory.name)
    assert first.fingerprint != open_random("train.seed=1").fingerprint


def test_a_parameter_does_not_depend_on_the_other_parameters(open_random: OpenInitial) -> None:
    small, deep = open_random().weights(), open_random("model.layers=2", "model.max_positions=256").weights()
    assert small.keys() < deep.keys()
    assert small.keys() - list_equal_parameters(small, deep) == {"bert.embeddings.position_embeddings.weight"}
    first, second = (deep[f"bert.encoder.layer.{layer}.output.dense.weight"] for layer in (0, 1))
    assert not np.array_equal(first, second)


def test_an_altered_file_is_built_again(open_random: OpenInitial, caplog: pytest.LogCaptureFixture) -> None:
    first = open_random()
    weights = first.weights()
    save_file({**weights, WORDS: weights[WORDS] + 1}, first.directory / "model.safetensors")
    with caplog.at_level(logging.WARNING, "lockstep"):
        rebuilt = open_random()
    assert "model.safetensors does not match its checksum; building it again" in caplog.text
    assert list_equal_parameters(rebuilt.weights(), weights) == weights.keys()


def test_reopening_does_not_read_the_weights(open_random: OpenInitial, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_random()

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr("common.data.atomic_directory.compute_checksum", fail)
    assert reopen_initial_checkpoint(first.directory) == first
