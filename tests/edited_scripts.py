"""Copies of the scripts in tests/scripts in which some text is replaced, as users make mistakes."""

import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


def edit_script(name: str, edits: Mapping[str, str], directory: Path) -> Path:
    """Write a copy of a script with edits to a directory, and return its path.

    Args:
        name: The name of a file in tests/scripts.
        edits: New texts by old texts. Every old text must occur once.
        directory: The directory of the copy.
    """
    text = (SCRIPTS / name).read_text()
    for old, new in edits.items():
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_script(path: Path, arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script in this process, as if from the command line."""
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")
