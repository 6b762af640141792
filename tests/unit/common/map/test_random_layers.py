"""Layers that draw random numbers, and layers that keep a state."""

import random

import numpy as np
import pytest

from common.map.description import ObservedPass, RecordedCall
from common.map.random_layers import observe_training, read_python_generators, seed_python

INPUT = np.ones(3)


def observe(path: str, returned: float, has_drawn: bool = True) -> ObservedPass:
    """Return a pass in which a layer and the one around it return a number."""
    calls = {name: RecordedCall(INPUT, np.full(3, returned)) for name in (path, "model")}
    return ObservedPass(calls, ["a (dropout)"], {"b": np.ones(2)}, has_drawn)


def test_numbers_that_depend_on_the_seed_are_random() -> None:
    """Also if only one seed of many shows it, as with rare stochastic depth."""
    for rare in (1, 30):
        observation = observe_training(lambda seed, rows, rare=rare: observe("a", seed == rare), 4, [])  # type: ignore[misc]
        assert observation.random_layers == ["a (dropout)", "a (random numbers)"]
        assert observation.stateful == [] and observation.buffers == {"b": False}


def test_numbers_that_change_with_the_same_seed_are_a_state() -> None:
    returned = iter(range(9))
    observation = observe_training(lambda seed, rows: observe("a", next(returned)), 4, [])
    assert observation.random_layers == ["a (dropout)"]
    (sentence,) = observation.stateful
    assert sentence.startswith("layer a returns something else when the same batch is computed again with the same")


@pytest.mark.parametrize(("has_drawn", "passes"), [(False, 2), (True, 34)])
def test_a_model_that_draws_nothing_is_computed_twice(has_drawn: bool, passes: int) -> None:
    seeds = []

    def compute(seed: int, rows: slice) -> ObservedPass:
        seeds.append(seed)
        return observe("a", 1, has_drawn)

    assert observe_training(compute, 4, ["b"]).random_layers == ["a (dropout)"]
    assert len(seeds) == passes


def test_generators_of_python_and_numpy() -> None:
    for draw in (random.random, np.random.rand):
        seed_python(1)
        before, first = read_python_generators(), draw()
        assert read_python_generators() != before
        seed_python(1)
        assert read_python_generators() == before and draw() == first
