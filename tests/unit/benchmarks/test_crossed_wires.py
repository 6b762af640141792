"""Tests of the changes that make the pairs of CrossedWires equal."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.crossed_wires import training
from benchmarks.crossed_wires.__main__ import build_command, main
from benchmarks.crossed_wires.ladders import LADDERS, TORCH_CHANGES, select_changes
from benchmarks.crossed_wires.training import Stage, list_stages, train_keras, train_torch, write_data
from docs.draw_crossed_wires import compare_losses


def test_first_changes_of_a_pair_are_selected() -> None:
    assert select_changes("resnet50", 0) == ()
    assert select_changes("resnet50", 2) == ("biases", "strides")
    assert all(select_changes(pair, len(changes)) == changes for pair, changes in LADDERS.items())


def test_both_models_of_a_command_get_the_same_changes() -> None:
    command = build_command("/venv/bin/python", "vgg16", 1)
    assert "torch.python=/venv/bin/python" in command
    assert "model.arguments={changes: 1}" in command
    assert "model.torch=benchmarks.crossed_wires.models_torch:vgg16" in command


def test_an_environment_without_torchvision_is_skipped_with_the_reason(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E -I "$@"\n')
    interpreter.chmod(0o755)
    with pytest.raises(SystemExit, match=r"skipped: .* cannot import torchvision: ModuleNotFoundError"):
        main(str(interpreter), [])


@pytest.mark.parametrize("pair", LADDERS)
def test_every_stage_removes_one_difference_and_the_last_stage_is_proven(pair: str) -> None:
    stages = list_stages(pair)
    assert stages[0].label == "as published" and not stages[0].shares_weights and stages[0].semantics == "native"
    assert stages[-1] == Stage(f"same {LADDERS[pair][-1]}", len(LADDERS[pair]), is_equal=True)
    assert not any(stage.is_equal for stage in stages[:-1])
    settings = [(stage.changes, stage.shares_weights, stage.semantics) for stage in stages]
    for before, after in itertools.pairwise(settings):
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
        assert after[0] - before[0] in (0, 1)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Record the training commands instead of running them."""
    recorded: list[list[str]] = []
    monkeypatch.setattr(training, "RESULTS", tmp_path)
    monkeypatch.setattr(training.subprocess, "run", lambda command, **_: recorded.append(command))
    return recorded


@pytest.mark.parametrize("pair", LADDERS)
def test_the_model_of_pytorch_changes_only_with_changes_of_its_own(pair: str, commands: list[list[str]]) -> None:
    run_dirs = {train_torch(pair, stage) for stage in list_stages(pair)}
    torch_changes = TORCH_CHANGES & {*LADDERS[pair][list_stages(pair)[0].changes :]}
    assert len(run_dirs) == 1 + len(torch_changes)
    assert not any(argument.startswith("model.tf=") for command in commands for argument in command)


def test_only_equal_models_are_proven_and_the_first_stage_has_its_own_weights(commands: list[list[str]]) -> None:
    for stage in list_stages("resnet50"):
        train_keras("resnet50", stage)
    assert [any(a.startswith("model.torch=") for a in command) for command in commands] == [False] + [True] * 6
    assert ["model.prove=false" in command for command in commands] == [True] * 6 + [False]


def test_images_have_the_shape_of_cifar_and_their_classes_can_be_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training, "RESULTS", tmp_path)
    splits = {split: np.load(write_data(split)) for split in ("train", "validation")}
    images, labels = splits["train"]["images"], splits["train"]["labels"]
    assert images.shape[1:] == (32, 32, 3) and images.dtype == np.float32
    assert images.min() >= 0 and images.max() <= 1
    means = np.stack([images[labels == label].mean(0) for label in range(10)])
    distances = ((splits["validation"]["images"][:, None] - means) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == splits["validation"]["labels"]).all()


def test_losses_are_compared_step_by_step() -> None:
    rows = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert compare_losses(rows, rows) == ([1, 2], [0, 0])
    assert compare_losses(rows, [rows[0], {"step": 2, "loss": 1.0}])[1] == [0, 0.75]
    with pytest.raises(ValueError, match="shorter"):
        compare_losses(rows, rows[:1])
