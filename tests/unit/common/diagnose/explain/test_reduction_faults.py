"""What a strategy makes of the gradients of its replicas, as numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.compose import parse_config
from common.config.schema import Config
from common.diagnose.explain.reduction_faults import compare_reduction, explain
from common.diagnose.explain.step_gradients import Reduction, clipping, norm, recovered, rounded, total
from common.diagnose.findings import Stage
from tests.conftest import Compose

Gradients = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    return parse_config(composed("train.precision=float64", "schedule=constant", "schedule.warmup_steps=0"))


def drawn(seed: int, scale: float = 1.0) -> Gradients:
    stream = np.random.default_rng(seed)
    return {"weight": scale * stream.standard_normal((5, 7)), "bias": scale * stream.standard_normal(5)}


def times(gradients: Gradients, factor: float) -> Gradients:
    return {name: each * factor for name, each in gradients.items()}


def bfloat16(gradients: Gradients) -> Gradients:
    def rounded(each: np.ndarray) -> np.ndarray:
        mantissa, exponent = np.frexp(each)
        return np.asarray(np.ldexp(np.round(mantissa * 256) / 256, exponent))

    return {name: rounded(each) for name, each in gradients.items()}


def clipped(gradients: Gradients, largest: float) -> Gradients:
    return times(gradients, min(1.0, largest / (norm(gradients) + 1e-6)))


WEIGHTS = [3.0, 2.0, 2.0]
SHARE = [each / sum(WEIGHTS) for each in WEIGHTS]
SHARDS = [drawn(seed, share) for seed, share in enumerate(SHARE)]
TOTAL = total(SHARDS)
FAULTS: dict[str, tuple[float | None, Gradients]] = {  # the largest norm, and the gradients of the update
    "averaged_twice": (None, times(TOTAL, 1 / 3)),
    "not_averaged": (None, times(TOTAL, 3)),
    "missing_gradient": (None, total(SHARDS[:2])),
    "mean_of_means": (None, total([times(each, 1 / part / 3) for each, part in zip(SHARDS, SHARE, strict=True)])),
    "stale_gradient": (None, drawn(9)),
    "reduced_in_bfloat16": (None, total([bfloat16(each) for each in SHARDS])),
    "not_clipped": (0.5, TOTAL),
    "clipped_per_variable": (
        0.5,
        {name: clipped({name: each}, 0.5)[name] for name, each in TOTAL.items()},
    ),
    "clipped_before_reduction": (
        0.5,
        total(
            [times(clipped(times(each, 1 / part), 0.5), part) for each, part in zip(SHARDS, SHARE, strict=True)],
        ),
    ),
    "clipping_norm": (0.5, times(TOTAL, 0.5 / (1.5 * norm(TOTAL) + 1e-6))),
    "weight_decay_coupled": (None, {name: each + 0.01 * drawn(7)[name] for name, each in TOTAL.items()}),
}


def configured(config: Config, largest: float | None) -> Config:
    return replace(config, optimizer=replace(config.optimizer, max_grad_norm=largest))


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_is_named(cause: str, config: Config) -> None:
    largest, found = FAULTS[cause]
    reported = norm(TOTAL) * (1.5 if cause == "clipping_norm" else 1.0)
    named, _ = explain(Reduction(configured(config, largest), 2, SHARDS, WEIGHTS, found, drawn(9), reported, drawn(7)))
    assert named == cause


@pytest.mark.parametrize(("kind", "largest"), [("adamw", None), ("adamw", 0.5), ("sgd", None), ("sgd", 0.5)])
def test_a_state_that_was_not_restored_is_named_in_the_second_step(
    kind: str, largest: float | None, config: Config
) -> None:
    config = replace(
        config,
        optimizer=replace(config.optimizer, kind=kind, momentum=0.9, weight_decay=0.0, max_grad_norm=largest),
    )
    slot, share = ("momentum_buffer", 1.0) if kind == "sgd" else ("exp_avg", 0.1)
    first, second = (times(each, share * clipping(config, each)) for each in (drawn(9), TOTAL))
    before, after = ({f"{slot}.{name}": each for name, each in found.items()} for found in (first, second))
    found = recovered(config, before, after, drawn(7))  # as if the first step's slots were still there
    for step, cause in ((2, "optimizer_state_lost"), (3, "reduction")):
        named, _ = explain(Reduction(config, step, SHARDS, WEIGHTS, found, drawn(9), norm(TOTAL), drawn(7)))
        assert named == cause


@pytest.mark.parametrize(("kind", "cause"), [("adam", "l2_counted_twice"), ("adamw", "weight_decay_coupled")])
def test_an_l2_penalty_that_counts_twice_is_named(kind: str, cause: str, config: Config) -> None:
    config = configured(replace(config, optimizer=replace(config.optimizer, kind=kind, weight_decay=0.01)), None)
    found = {name: each + 0.01 * drawn(7)[name] for name, each in TOTAL.items()}
    named, words = explain(Reduction(config, 1, SHARDS, WEIGHTS, found, None, norm(TOTAL), drawn(7)))
    assert named == cause and ("0.02 times" in words) == (kind == "adam")


def test_a_parameter_without_a_gradient_is_named(config: Config) -> None:
    stage = Stage("reduction")
    found = {**TOTAL, "bias": np.zeros(5)}
    reduction = Reduction(configured(config, None), 1, SHARDS, WEIGHTS, found, None, norm(TOTAL), drawn(7))
    compare_reduction(stage, "b", reduction)
    assert [(each.cause, each.side, each.tensor) for each in stage.causes] == [("no_gradient", "b", "bias")]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([None, 0.1, 100.0]))
def test_a_correct_reduction_has_no_cause(config: Config, seed: int, count: int, largest: float | None) -> None:
    config = configured(config, largest)
    shards = [drawn(seed + rank) for rank in range(count)]
    summed = total(shards)
    found = times(summed, clipping(config, summed))
    stage = Stage("reduction")
    compare_reduction(stage, "a", Reduction(config, 1, shards, [1.0] * count, found, None, norm(summed), drawn(1)))
    assert stage.verdict == "equal"


@pytest.mark.parametrize(("fault", "cause"), [(None, None), ("averaged_twice", "averaged_twice")])
def test_gradients_that_float32_slots_round_have_no_cause(fault: str | None, cause: str | None, config: Config) -> None:
    """An old moment a hundred times the gradient leaves it five digits."""
    config = configured(replace(config, train=replace(config.train, precision="float32")), None)
    gradients, last = FAULTS[fault][1] if fault else TOTAL, times(drawn(3), 10)
    before = {f"exp_avg.{name}": each.astype(np.float32).astype(np.float64) for name, each in last.items()}
    after = {
        f"exp_avg.{name}": (0.9 * before[f"exp_avg.{name}"] + 0.1 * each).astype(np.float32).astype(np.float64)
        for name, each in gradients.items()
    }
    found, off = recovered(config, before, after, drawn(7)), rounded(config, before, after)
    assert max(float(np.abs(found[name] - each).max()) for name, each in gradients.items()) > 1e-6
    stage = Stage("reduction", precision="float32")
    reduction = Reduction(config, 2, SHARDS, WEIGHTS, found, drawn(9), norm(TOTAL), drawn(7), off)
    compare_reduction(stage, "b", reduction)
    assert [each.cause for each in stage.causes] == ([cause] if cause else [])


def test_a_gradient_that_is_not_finite_is_named(config: Config) -> None:
    stage, found = Stage("reduction"), {**TOTAL, "bias": np.full(5, np.nan)}
    reduction = Reduction(configured(config, None), 1, SHARDS, WEIGHTS, found, None, norm(TOTAL), drawn(7))
    compare_reduction(stage, "b", reduction)
    assert [(each.cause, each.tensor) for each in stage.causes] == [("not_finite", "bias")]


@pytest.mark.parametrize(
    ("kind", "slot", "keep", "share"), [("adamw", "exp_avg", 0.9, 0.1), ("sgd", "momentum_buffer", 0.9, 1)]
)
def test_gradients_are_recovered_from_slots(kind: str, slot: str, keep: float, share: float, config: Config) -> None:
    config = replace(config, optimizer=replace(config.optimizer, kind=kind, momentum=0.9, weight_decay=0.0))
    before = {f"{slot}.{name}": each for name, each in drawn(3).items()}
    after = {f"{slot}.{name}": keep * before[f"{slot}.{name}"] + share * each for name, each in TOTAL.items()}
    found = recovered(config, before, after, drawn(7))
    assert all(np.allclose(found[name], each, rtol=1e-12) for name, each in TOTAL.items())
