"""The machine that the tests of common see."""

import pytest

from common.config import validate as validation


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests know how many GPUs there are: none, where they do not say otherwise."""
    monkeypatch.setattr(validation, "visible_gpus", lambda: 0)
