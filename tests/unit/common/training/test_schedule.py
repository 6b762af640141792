import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from common.config.compose import parse_config
from common.config.schema import Config
from common.training.schedule import compute_learning_rate
from tests.conftest import Compose

NAMES = ["constant", "linear", "cosine"]

names = st.sampled_from(NAMES)
warmups = st.integers(0, 30)
totals = st.integers(1, 60)


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    return parse_config(composed())


def rates(config: Config, name: str, warmup: int, total: int, steps: int, base: float = 1.0) -> list[float]:
    """Return the learning rates of updates 1 to `steps`."""
    schedule = replace(config.schedule, kind=name, warmup_steps=warmup, total_steps=total)
    config = replace(config, schedule=schedule, optimizer=replace(config.optimizer, learning_rate=base))
    return [compute_learning_rate(config, step) for step in range(1, steps + 1)]


def hugging_face(name: str, current: int, warmup: int, total: int) -> float:
    """Return the factor of transformers.optimization.get_{constant,linear,cosine}_schedule_with_warmup."""
    if current < warmup:
        return current / max(1, warmup)
    if name == "constant":
        return 1.0
    if name == "linear":
        return max(0.0, (total - current) / max(1, total - warmup))
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * (current - warmup) / max(1, total - warmup))))


@given(name=names, warmup=warmups, total=totals)
def test_hugging_faces_formulas(config: Config, name: str, warmup: int, total: int) -> None:
    """Hugging Face counts updates from 0. Lockstep is one update ahead in the warm-up, to avoid a rate of 0."""
    assume(warmup < total)
    for step, rate in enumerate(rates(config, name, warmup, total, total), 1):
        current = step if step <= warmup else step - 1
        assert rate == pytest.approx(hugging_face(name, current, warmup, total), abs=1e-12), step


@given(name=names, warmup=warmups, total=totals)
def test_bounds(config: Config, name: str, warmup: int, total: int) -> None:
    """The rate rises to the base in the warm-up, never rises after it, and is never negative, even after the end."""
    learning_rates = rates(config, name, warmup, total, total + 40)
    assert all(0 <= rate <= 1 for rate in learning_rates)
    assert all(first < second for first, second in pairwise(learning_rates[:warmup]))
    assert learning_rates[max(0, warmup - 1)] == 1
    assert all(first >= second for first, second in pairwise(learning_rates[max(0, warmup - 1) :]))
    assert all(rate > 0 for rate in learning_rates[:total]), "every update of the run must have a positive rate"
    if name != "constant" and total > warmup:
        assert learning_rates[total] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.5 + 2**0.5 / 4, 0.5, 0.5 - 2**0.5 / 4]),
    ],
)
def test_values(config: Config, name: str, expected: list[float]) -> None:
    assert rates(config, name, warmup=2, total=6, steps=6) == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
def test_scales_with_the_base(config: Config, name: str) -> None:
    unit = rates(config, name, 3, 10, 10)
    assert rates(config, name, 3, 10, 10, 3e-5) == pytest.approx([3e-5 * rate for rate in unit])


def test_without_total_steps_the_run_is_all_of_them(config: Config) -> None:
    schedule = replace(config.schedule, kind="linear", warmup_steps=0, total_steps=None)
    config = replace(config, schedule=schedule, train=replace(config.train, steps=4))
    config = replace(config, optimizer=replace(config.optimizer, learning_rate=1.0))
    assert [compute_learning_rate(config, step) for step in (1, 2, 3, 4, 5)] == [1, 0.75, 0.5, 0.25, 0]
