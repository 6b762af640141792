import logging
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.models.initial_weights import reopen_initial_checkpoint
from tests.unit.common.models.conftest import Open, equal

WORDS = "bert.embeddings.word_embeddings.weight"


def test_the_same_config_gives_the_same_file(drawn: Open, tmp_path: Path) -> None:
    first = drawn()
    again = drawn(f"cache_dir={tmp_path / 'another'}", "optimizer=sgd", "train.steps=7")
    assert first.directory != again.directory
    assert (first.fingerprint, first.directory.name) == (again.fingerprint, again.directory.name)
    assert first.fingerprint != drawn("train.seed=1").fingerprint


def test_a_parameter_does_not_depend_on_the_rest_of_the_model(drawn: Open) -> None:
    small, deep = drawn().weights(), drawn("model.layers=2", "model.max_positions=256").weights()
    assert small.keys() < deep.keys()
    assert small.keys() - equal(small, deep) == {"bert.embeddings.position_embeddings.weight"}
    first, second = (deep[f"bert.encoder.layer.{layer}.output.dense.weight"] for layer in (0, 1))
    assert not np.array_equal(first, second)


def test_an_altered_file_is_made_again(drawn: Open, caplog: pytest.LogCaptureFixture) -> None:
    first = drawn()
    weights = first.weights()
    save_file({**weights, WORDS: weights[WORDS] + 1}, first.directory / "model.safetensors")
    with caplog.at_level(logging.WARNING, "lockstep"):
        again = drawn()
    assert "model.safetensors does not match its checksum; building it again" in caplog.text
    assert equal(again.weights(), weights) == weights.keys()


def test_reopened_without_reading_the_weights(drawn: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn()

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("common.data.atomic_directory.compute_checksum", fail)
    again = reopen_initial_checkpoint(first.directory)
    assert again == first
