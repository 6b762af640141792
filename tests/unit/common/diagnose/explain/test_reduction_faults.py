"""Faults of a strategy or an optimizer that change the gradients of an update."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.compose import parse_config
from common.config.schema import Config
from common.diagnose.explain.reduction_faults import explain_reduction, is_unexplained
from common.diagnose.explain.step_gradients import (
    StepGradients,
    clip_factor,
    estimate_slot_noise,
    global_norm,
    recover_gradients,
    sum_gradients,
)
from common.diagnose.explain.update_settings import read_update_settings
from common.diagnose.findings import Stage
from common.diagnose.stages.reduction import compare_reduction
from tests.conftest import Compose
from tests.unit.common.diagnose.parameters import (
    Arrays,
    add_prefix,
    draw_parameters,
    multiply,
    round_to_float32,
)

SHARD_WEIGHTS = [3.0, 2.0, 2.0]
SHARES = [weight / sum(SHARD_WEIGHTS) for weight in SHARD_WEIGHTS]
SHARDS = [draw_parameters(seed, share) for seed, share in enumerate(SHARES)]
TOTAL = sum_gradients(SHARDS)
PREVIOUS, WEIGHTS = draw_parameters(9), draw_parameters(7)
MAX_NORM = 0.5


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    return parse_config(composed("train.precision=float64", "schedule=constant", "schedule.warmup_steps=0"))


def with_optimizer(config: Config, **settings: object) -> Config:
    return replace(config, optimizer=replace(config.optimizer, **settings))  # type: ignore[arg-type]


def make_gradients(config: Config, recovered: Arrays, step: int = 2) -> StepGradients:
    """Return a step whose shards are SHARDS, and whose update used the recovered gradients."""
    previous = PREVIOUS if step > 1 else None
    settings = read_update_settings(config, step)
    return StepGradients(settings, step, SHARDS, SHARD_WEIGHTS, recovered, previous, global_norm(TOTAL), WEIGHTS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gradients_that_are_not_finite_are_named(value: float, config: Config) -> None:
    """PyTorch's standard deviation of zeros has no gradient."""
    name = next(iter(TOTAL))
    explanation = explain_reduction(make_gradients(config, TOTAL | {name: np.full_like(TOTAL[name], value)}))
    assert (explanation.cause, explanation.confirmed) == ("not_finite", False)


def round_to_bfloat16(gradients: Arrays) -> Arrays:
    rounded = {}
    for name, gradient in gradients.items():
        mantissa, exponent = np.frexp(gradient)
        rounded[name] = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return rounded


def clip(gradients: Arrays) -> Arrays:
    return multiply(gradients, clip_factor(global_norm(gradients), MAX_NORM))


def sum_clipped_shards() -> Arrays:
    means = [multiply(shard, 1 / share) for shard, share in zip(SHARDS, SHARES, strict=True)]
    return sum_gradients([multiply(clip(mean), share) for mean, share in zip(means, SHARES, strict=True)])


def sum_means() -> Arrays:
    return sum_gradients([multiply(shard, 1 / share / 3) for shard, share in zip(SHARDS, SHARES, strict=True)])


FAULTS: dict[str, tuple[float | None, Arrays]] = {  # optimizer.max_grad_norm, and the gradients of the update
    "averaged_twice": (None, multiply(TOTAL, 1 / 3)),
    "not_averaged": (None, multiply(TOTAL, 3)),
    "missing_gradient": (None, sum_gradients(SHARDS[:2])),
    "mean_of_means": (None, sum_means()),
    "stale_gradient": (None, PREVIOUS),
    "reduced_in_bfloat16": (None, sum_gradients([round_to_bfloat16(shard) for shard in SHARDS])),
    "not_clipped": (MAX_NORM, TOTAL),
    "clipped_per_variable": (MAX_NORM, {name: clip({name: TOTAL[name]})[name] for name in TOTAL}),
    "clipped_before_reduction": (MAX_NORM, sum_clipped_shards()),
    "clipping_norm": (MAX_NORM, multiply(TOTAL, clip_factor(1.5 * global_norm(TOTAL), MAX_NORM))),
    "weight_decay_coupled": (None, {name: TOTAL[name] + 0.01 * WEIGHTS[name] for name in TOTAL}),
}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_is_named(cause: str, config: Config) -> None:
    max_norm, recovered = FAULTS[cause]
    gradients = make_gradients(with_optimizer(config, max_grad_norm=max_norm), recovered)
    if cause == "clipping_norm":
        gradients = replace(gradients, reported_norm=1.5 * gradients.reported_norm)
    assert explain_reduction(gradients).cause == cause


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("max_norm", [None, MAX_NORM])
def test_a_lost_state_is_named_in_the_second_step(kind: str, max_norm: float | None, config: Config) -> None:
    config = with_optimizer(config, kind=kind, momentum=0.9, weight_decay=0.0, max_grad_norm=max_norm)
    slot, share = ("momentum_buffer", 1.0) if kind == "sgd" else ("exp_avg", 0.1)
    before, after = (
        add_prefix(slot, multiply(gradients, share * clip_factor(global_norm(gradients), max_norm)))
        for gradients in (PREVIOUS, TOTAL)  # the second step starts from empty slots
    )
    recovered = recover_gradients(read_update_settings(config, 2), before, after, WEIGHTS)
    for step, cause in ((2, "optimizer_state_lost"), (3, "reduction")):
        assert explain_reduction(make_gradients(config, recovered, step)).cause == cause


@pytest.mark.parametrize(("kind", "cause"), [("adam", "l2_counted_twice"), ("adamw", "weight_decay_coupled")])
def test_an_l2_penalty_that_counts_twice_is_named(kind: str, cause: str, config: Config) -> None:
    config = with_optimizer(config, kind=kind, weight_decay=0.01, max_grad_norm=None)
    recovered = {name: gradient + 0.01 * WEIGHTS[name] for name, gradient in TOTAL.items()}
    explanation = explain_reduction(make_gradients(config, recovered, step=1))
    assert explanation.cause == cause and ("0.02 times" in explanation.sentence) == (kind == "adam")


@pytest.mark.parametrize(("value", "cause"), [(0.0, "no_gradient"), (np.nan, "not_finite")])
def test_a_parameter_without_a_gradient_is_named(value: float, cause: str, config: Config) -> None:
    stage, recovered = Stage("reduction"), {**TOTAL, "bias": np.full(5, value)}
    compare_reduction(stage, "b", make_gradients(with_optimizer(config, max_grad_norm=None), recovered, step=1))
    assert [(known.cause, known.side, known.tensor) for known in stage.causes] == [(cause, "b", "bias")]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([None, 0.1, 100.0]))
def test_a_correct_reduction_has_no_cause(config: Config, seed: int, count: int, max_norm: float | None) -> None:
    config = with_optimizer(config, max_grad_norm=max_norm)
    shards = [draw_parameters(seed + rank) for rank in range(count)]
    total = sum_gradients(shards)
    norm = global_norm(total)
    recovered = multiply(total, clip_factor(norm, max_norm))
    stage = Stage("reduction")
    gradients = StepGradients(
        read_update_settings(config, 1), 1, shards, [1.0] * count, recovered, None, norm, draw_parameters(1)
    )
    compare_reduction(stage, "a", gradients)
    assert stage.verdict == "equal"


@pytest.mark.parametrize("fault", [None, "averaged_twice"])
def test_rounding_of_float32_slots_is_no_fault(fault: str | None, config: Config) -> None:
    """Test an old moment that is a hundred times the gradient, to which it leaves five digits."""
    config = replace(config, train=replace(config.train, precision="float32"))
    config = with_optimizer(config, max_grad_norm=None)
    expected = FAULTS[fault][1] if fault else TOTAL
    old = round_to_float32(multiply(draw_parameters(3), 10))
    new = round_to_float32({name: 0.9 * old[name] + 0.1 * gradient for name, gradient in expected.items()})
    before, after = add_prefix("exp_avg", old), add_prefix("exp_avg", new)
    recovered = recover_gradients(read_update_settings(config, 2), before, after, WEIGHTS)
    assert max(float(np.abs(recovered[name] - gradient).max()) for name, gradient in expected.items()) > 1e-6
    stage = Stage("reduction", precision="float32")
    gradients = make_gradients(config, recovered)
    compare_reduction(stage, "b", replace(gradients, noise=estimate_slot_noise(gradients.settings, before, after)))
    assert [known.cause for known in stage.causes] == ([fault] if fault else [])


@pytest.mark.parametrize(("count", "cause"), [(1, "used_gradients"), (2, "reduction")])
def test_one_process_has_no_replicas(count: int, cause: str, config: Config) -> None:
    config = with_optimizer(config, max_grad_norm=None)
    shards = [draw_parameters(rank) for rank in range(count)]
    gradients = StepGradients(
        read_update_settings(config, 1), 1, shards, [1.0] * count, draw_parameters(9), None, 1.0, draw_parameters(1)
    )
    explanation = explain_reduction(gradients)
    assert (explanation.cause, "replicas" in explanation.sentence) == (cause, count > 1)
    assert is_unexplained(gradients)


def test_gradients_without_a_limit_are_not_called_unclipped(config: Config) -> None:
    """A factor that is close to 1 is none of a clipping, although it is larger than a rounding error."""
    gradients = make_gradients(with_optimizer(config, max_grad_norm=None), multiply(TOTAL, 1 + 5e-7))
    explanation = explain_reduction(gradients)
    assert not gradients.is_as_expected
    assert explanation.cause != "not_clipped", explanation.sentence
