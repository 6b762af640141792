"""The machine that the tests of common see."""

from collections.abc import Callable

import pytest

from common.config import resolve, validate

Gpus = Callable[[int], None]


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Set how many GPUs these tests see: none, unless a test says otherwise."""

    def see(count: int) -> None:
        for module in (validate, resolve):
            monkeypatch.setattr(module, "count_visible_gpus", lambda: count)

    see(0)
    return see
