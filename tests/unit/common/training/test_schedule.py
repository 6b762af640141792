import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from common.config.compose import parse_config
from common.config.optimizers import SgdSettings
from common.config.schedules import SCHEDULES
from common.config.schema import Config
from common.errors import UserError
from common.training.schedule import compute_learning_rate, find_highest_rate, find_update_settings
from tests.conftest import Compose, MakeConfig

NAMES = ["constant", "linear", "cosine"]
BASE = 0.3  # learning rate of the comparisons with other libraries

names = st.sampled_from(NAMES)
warmups = st.integers(0, 30)
totals = st.integers(1, 60)
factors = st.floats(0, 1)


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    return parse_config(composed())


def rates(
    config: Config, name: str, warmup: int, total: int | None, steps: int, base: float = 1.0, **keys: Any
) -> list[float]:
    """Return the learning rates of updates 1 to `steps`."""
    if name == "cosine":
        keys = {"end_factor": 0.0, "cycles": 1} | keys
    schedule = SCHEDULES[name](name, warmup, total, **{"warmup_start": None, "every": 1} | keys)
    schedule.check()
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
    config = replace(config, train=replace(config.train, steps=4))
    assert rates(config, "linear", 0, None, 5) == [1, 0.75, 0.5, 0.25, 0]


@given(warmup=warmups, total=totals, base=st.floats(1e-6, 10))
def test_curves_of_earlier_versions_are_the_same_bit_by_bit(
    config: Config, warmup: int, total: int, base: float
) -> None:
    def earlier(name: str, step: int) -> float:
        if step <= warmup:
            return base * step / warmup
        progress = min(1.0, (step - 1 - warmup) / max(1, total - warmup))
        if name == "constant":
            return base
        return base * (1 - progress) if name == "linear" else base * (1 + math.cos(math.pi * progress)) / 2

    for name in NAMES:
        assert rates(config, name, warmup, total, total + 5, base) == [earlier(name, s) for s in range(1, total + 6)]


def torch_rates(make: Callable[[torch.optim.Optimizer], Any], steps: int, key: str = "lr") -> list[float]:
    """Return the rates of updates 1 to `steps` with a scheduler of PyTorch that steps after each update.

    key: "momentum" for the momentums instead.
    """
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    learning_rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OneCycleLR's arithmetic, and SequentialLR's own calls
        scheduler = make(optimizer)
        for step in range(steps):
            learning_rates.append(float(optimizer.param_groups[0][key]))
            optimizer.step()
            if step < steps - 1:
                scheduler.step()
    return learning_rates


def check(lockstep_rates: list[float], expected: list[float]) -> None:
    assert lockstep_rates == pytest.approx(expected, rel=1e-12, abs=1e-15)


# For each kind, its keys as a strategy of hypothesis, and the scheduler of PyTorch with these keys. PyTorch's recursive
# formulas add up rounding errors, so LambdaLR has the closed formula of the scheduler's documentation if they do.
Comparison = tuple[st.SearchStrategy[dict[str, Any]], Callable[[torch.optim.Optimizer, int, dict[str, Any]], Any]]
TORCH: dict[str, Comparison] = {
    "constant": (st.just({}), lambda o, total, k: lr_scheduler.LambdaLR(o, lambda epoch: 1.0)),
    "linear": (st.just({}), lambda o, total, k: lr_scheduler.LinearLR(o, 1.0, 0.0, total)),
    "cosine": (
        st.fixed_dictionaries({"end_factor": factors}),
        lambda o, total, k: lr_scheduler.CosineAnnealingLR(o, total, BASE * k["end_factor"]),
    ),
    "cosine_restarts": (
        st.fixed_dictionaries(
            {
                "first_cycle_steps": st.integers(1, 20),
                "cycle_multiplier": st.integers(1, 3),
                "peak_multiplier": st.just(1.0),
                "end_factor": factors,
            }
        ),
        lambda o, total, k: lr_scheduler.CosineAnnealingWarmRestarts(
            o, k["first_cycle_steps"], k["cycle_multiplier"], BASE * k["end_factor"]
        ),
    ),
    "polynomial": (
        st.fixed_dictionaries({"power": st.floats(0.25, 4), "end_factor": st.just(0.0)}),
        lambda o, total, k: lr_scheduler.PolynomialLR(o, total, k["power"]),
    ),
    "step": (
        st.fixed_dictionaries({"step_size": st.integers(1, 20), "gamma": st.floats(0.1, 1.5)}),
        lambda o, total, k: lr_scheduler.StepLR(o, k["step_size"], k["gamma"]),
    ),
    "multi_step": (
        st.fixed_dictionaries(
            {
                "milestones": st.lists(st.integers(1, 60), min_size=1, unique=True).map(sorted),
                "gamma": st.floats(0.1, 1.5),
            }
        ),
        lambda o, total, k: lr_scheduler.MultiStepLR(o, k["milestones"], k["gamma"]),
    ),
    "exponential": (
        st.fixed_dictionaries({"gamma": st.floats(0.5, 1.1), "decay_steps": st.just(1)}),
        lambda o, total, k: lr_scheduler.ExponentialLR(o, k["gamma"]),
    ),
    "one_cycle": (
        st.fixed_dictionaries(
            {
                "pct_start": st.floats(0.05, 0.45),
                "anneal": st.sampled_from(["cosine", "linear"]),
                "div_factor": st.floats(1, 100),
                "final_div_factor": st.floats(1, 1e5),
                "three_phase": st.booleans(),
                "cycle_momentum": st.just(True),
                "base_momentum": st.floats(0.1, 0.9),
                "max_momentum": st.floats(0.1, 0.99),
            }
        ),
        lambda o, total, k: lr_scheduler.OneCycleLR(
            o,
            BASE,
            total,
            pct_start=k["pct_start"],
            anneal_strategy="cos" if k["anneal"] == "cosine" else "linear",
            base_momentum=k["base_momentum"],
            max_momentum=k["max_momentum"],
            div_factor=k["div_factor"],
            final_div_factor=k["final_div_factor"],
            three_phase=k["three_phase"],
        ),
    ),
    "custom": (
        st.just({"function": f"{__name__}:decay"}),
        lambda o, total, k: lr_scheduler.LambdaLR(o, lambda epoch: decay(epoch, total)),
    ),
}


def decay(step: int, total: int) -> float:
    """Return a factor, as a function of a user does."""
    return 1 / (1 + step / total)


@pytest.mark.parametrize("name", TORCH)
@given(data=st.data(), total=st.integers(1, 60))
def test_schedulers_of_pytorch(config: Config, name: str, data: st.DataObject, total: int) -> None:
    """PyTorch's scheduler steps after each update, so its `last_epoch` in update s is s - 1."""
    keys, make = TORCH[name]
    values = data.draw(keys)
    steps = total if name == "one_cycle" else total + 1
    if name == "one_cycle":
        assume(abs(values["pct_start"] * total - 1) > 1e-6)  # PyTorch divides by 0
    expected = torch_rates(lambda optimizer: make(optimizer, total, values), steps)
    lockstep_rates = rates(config, name, 0, total, steps, BASE, **values)
    # Most of PyTorch's schedulers multiply the last rate, so that rounding errors add up, above all near a rate of 0.
    assert lockstep_rates == pytest.approx(expected, rel=1e-12, abs=1e-13)
    if name == "one_cycle":
        momentums = torch_rates(lambda optimizer: make(optimizer, total, values), steps, "momentum")
        optimizer = SgdSettings("sgd", "aligned", BASE, 0.0, None, None, None, [], 0.5, None, None, None, False, 0.0)
        config = replace(config, schedule=SCHEDULES[name](name, 0, total, None, 1, **values), optimizer=optimizer)
        actual = [find_update_settings(config, step).momentum for step in range(1, steps + 1)]
        assert actual == pytest.approx(momentums, rel=1e-12)


@pytest.mark.slow
@given(warmup=st.integers(2, 20), total=st.integers(21, 60), size=st.integers(1, 9))
def test_a_schedule_starts_after_the_warm_up_as_in_sequential_lr(
    config: Config, warmup: int, total: int, size: int
) -> None:
    """LinearLR in front of StepLR: the warm-up ends at the base, and the steps are counted after it."""

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
        first = lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
        return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.StepLR(optimizer, size, 0.5)], [warmup])

    lockstep_rates = rates(config, "step", warmup, total, total, BASE, step_size=size, gamma=0.5)
    assert lockstep_rates == pytest.approx(torch_rates(make, total), rel=1e-12)


@given(warmup=st.integers(1, 6), epochs=st.integers(7, 12), per_epoch=st.integers(1, 9), start=factors)
def test_a_schedule_that_steps_once_per_epoch(
    config: Config, warmup: int, epochs: int, per_epoch: int, start: float
) -> None:
    """LinearLR with a start_factor in front of CosineAnnealingLR, stepped after each epoch as in torchvision."""
    start = max(start, 1e-3)  # PyTorch divides by the factor

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
        first = lr_scheduler.LinearLR(optimizer, start, 1.0, warmup)
        return lr_scheduler.SequentialLR(
            optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, epochs - warmup)], [warmup]
        )

    keys = {"warmup_start": start, "every": per_epoch}
    steps = epochs * per_epoch
    lockstep_rates = rates(config, "cosine", warmup * per_epoch, steps, steps, BASE, **keys)
    expected = np.repeat(torch_rates(make, epochs), per_epoch)
    assert lockstep_rates == pytest.approx(expected, rel=1e-9, abs=1e-13)
    increasing = rates(config, "constant", warmup * per_epoch, None, steps, every=per_epoch)[::per_epoch]
    assert increasing == pytest.approx([min(1, (epoch + 1) / warmup) for epoch in range(epochs)], rel=1e-12)


@given(warmup=st.integers(1, 40), total=st.integers(41, 90))
def test_warm_up_from_a_rate_of_0_is_that_of_hugging_face(config: Config, warmup: int, total: int) -> None:
    lockstep_rates = rates(config, "linear", warmup, total, total, warmup_start=0.0)
    expected = [hugging_face("linear", current, warmup, total) for current in range(total)]
    assert lockstep_rates == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@given(warmup=warmups, total=totals, cycles=st.integers(1, 5), power=st.floats(0.5, 3), end=factors)
def test_further_formulas_of_hugging_face(
    config: Config, warmup: int, total: int, cycles: int, power: float, end: float
) -> None:
    """get_{cosine_with_hard_restarts,polynomial_decay,inverse_sqrt}_schedule_with_warmup, after the warm-up."""
    assume(warmup < total)
    length = total - warmup
    restarts = rates(config, "cosine", warmup, total, total, cycles=cycles)
    polynomial = rates(config, "polynomial", warmup, total, total, power=power, end_factor=end)
    roots = rates(config, "inverse_sqrt", warmup, total, total, timescale=None)
    for current in range(warmup, total):
        progress = (current - warmup) / length
        check([restarts[current]], [max(0.0, 0.5 * (1 + math.cos(math.pi * ((cycles * progress) % 1))))])
        check([polynomial[current]], [(1 - end) * (1 - (current - warmup) / length) ** power + end])
        timescale = warmup or 10_000
        check([roots[current]], [1 / math.sqrt((current + timescale - warmup) / timescale)])


def test_piecewise_and_milestones_differ_by_one(config: Config) -> None:
    """Keras's boundary is the last step of its value, PyTorch's milestone the first step of the next rate."""
    piecewise = rates(config, "piecewise", 0, 1, 6, boundaries=[2], factors=[1.0, 0.1])
    milestones = rates(config, "multi_step", 0, 1, 6, milestones=[3], gamma=0.1)
    assert piecewise == milestones == [1.0, 1.0, 1.0, 0.1, 0.1, 0.1]


def too_low(step: int, total: int) -> float:
    return -1.0 if step == 3 else 1.0


def not_a_number(step: int, total: int) -> float:
    return math.nan if step + 1 == total else 1.0


def failing(step: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["schedule=custom", f"schedule.function={__name__}:too_low"], "the learning rate of step 4 is -"),
        (["schedule=custom", f"schedule.function={__name__}:not_a_number"], "the learning rate of step 300 is nan"),
        (["schedule=custom", f"schedule.function={__name__}:failing"], "raised TypeError"),
        (["schedule=custom", f"schedule.function={__name__}:absent"], "has no function absent"),
        (["schedule=custom", "schedule.function=absent:decay"], "no module absent"),
        (["schedule=custom", "schedule.function=decay"], "must be module:function"),
        (["schedule=exponential", "schedule.gamma=1e9"], "schedule=exponential: the learning rate of step "),
    ],
)
def test_invalid_rates_are_refused(make_config: MakeConfig, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as raised:
        find_highest_rate(make_config("schedule.warmup_steps=0", *overrides))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_the_highest_rate_may_be_anywhere(make_config: MakeConfig) -> None:
    config = make_config("schedule=one_cycle", "optimizer.learning_rate=0.5", "train.steps=100")
    assert find_highest_rate(config) == pytest.approx(0.5)
