"""Tests of the bound on staleness in simulations that read, finish and dispatch batches in any order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data.batches import GlobalBatch, training_batches
from common.training.dispatcher import Dispatcher
from common.training.planned_batches import find_batch
from tests.conftest import MakeConfig, MakeSplit


class Simulation:
    """Workers that read and finish batches in an order that hypothesis draws."""

    def __init__(self, dispatcher: Dispatcher, data: st.DataObject) -> None:
        self.dispatcher, self.data = dispatcher, data
        self.version = 0
        self.waiting: list[GlobalBatch] = []  # dispatched, but not begun
        self.reads: list[tuple[GlobalBatch, int]] = []  # begun, with the version that was read
        self.dispatched: list[GlobalBatch] = []
        self.stalenesses: list[int] = []

    def run(self) -> None:
        while True:
            choices: list[Any] = [None] * bool(self.waiting) + list(range(len(self.reads)))
            if (batch := self.dispatcher.take()) is not None:
                self.dispatched.append(batch)
                self.waiting.append(batch)
                if self.data.draw(st.booleans()):
                    continue  # dispatch as many batches as the dispatcher allows
            elif not choices:
                return
            choices = [None] * bool(self.waiting) + list(range(len(self.reads)))
            choice = self.data.draw(st.sampled_from(choices))
            if choice is None:
                self.reads.append((self.waiting.pop(), self.version))
            else:
                batch, read = self.reads.pop(choice)
                self.stalenesses.append(self.version - read)
                self.version += 1
                self.dispatcher.finish(batch)


@pytest.mark.slow
@given(
    data=st.data(),
    count=st.integers(1, 30),
    size=st.integers(1, 7),
    parts=st.integers(1, 4),
    at_once=st.integers(1, 6),
    bound=st.none() | st.integers(1, 6),
)
def test_every_part_once_and_never_staler_than_the_bound(
    make_split: MakeSplit, data: st.DataObject, count: int, size: int, parts: int, at_once: int, bound: int | None
) -> None:
    batches = list(training_batches(make_split([3] * count), size, 0, range(1, 6), "global"))
    simulation = Simulation(Dispatcher(batches, parts, at_once, bound), data)
    simulation.run()
    expected = [(part.step, part.part, part.ids.tolist()) for batch in batches for part in batch.divide(parts)]
    assert [(batch.step, batch.part, batch.ids.tolist()) for batch in simulation.dispatched] == expected
    assert len(simulation.stalenesses) == len(expected)
    assert bound is None or max(simulation.stalenesses) <= bound


def test_the_bound_is_reached(make_split: MakeSplit) -> None:
    """The dispatcher does not keep the bound by dispatching one batch at a time."""
    dispatcher = Dispatcher(training_batches(make_split([3] * 20), 2, 0, range(1, 11), "global"), 1, 8, 2)
    taken = [dispatcher.take() for _ in range(4)]
    assert [batch is not None for batch in taken] == [True, True, True, False]
    first = taken[0]
    assert first is not None
    dispatcher.finish(first)
    assert dispatcher.take() is None  # another batch could make the other two staler than the bound


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_worker_finds_the_batch_of_a_number(small_config: MakeConfig, make_split: MakeSplit, number: int) -> None:
    config = small_config("train.global_batch_size=4", "train.seed=3")
    split = make_split([3] * 10)
    batches = list(training_batches(split, 4, 3, range(1, 5), "global"))
    assert find_batch(config, split, number).ids.tolist() == batches[number - 1].ids.tolist()
