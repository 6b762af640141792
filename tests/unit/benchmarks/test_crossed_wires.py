"""Tests of the changes that make the pairs of CrossedWires equal."""

import sys
from pathlib import Path

import pytest

from benchmarks.crossed_wires.__main__ import build_command, main
from benchmarks.crossed_wires.ladders import LADDERS, select_changes


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
