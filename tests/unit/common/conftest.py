"""The machine that the tests of common see."""

from collections.abc import Callable

import pytest

from common.config import resolve, validate

Gpus = Callable[[int], None]


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Sets how many GPUs these tests see: none, where they do not say otherwise."""

    def see(count: int) -> None:
        for module in (validate, resolve):
            monkeypatch.setattr(module, "count_visible_gpus", lambda: count)

    see(0)
    return see
