"""The machine that the tests of common see, and a process of each framework."""

from collections.abc import Callable, Iterator

import pytest

from common.config import validate
from common.map.side import Side

Gpus = Callable[[int], None]
Sides = dict[str, Side]


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Set how many GPUs these tests see: none, unless a test says otherwise."""

    def see(count: int) -> None:
        monkeypatch.setattr(validate, "count_visible_gpus", lambda: count)

    see(0)
    return see


@pytest.fixture(scope="session")
def sides() -> Iterator[Sides]:
    """A process of each framework for all tests of a worker, by the name that a request gives their factories."""
    with Side("torch_impl") as torch_side, Side("tf_impl") as keras_side:
        yield {"torch": torch_side, "tf": keras_side}
