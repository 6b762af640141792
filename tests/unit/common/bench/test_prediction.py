"""The cost model, compared with counts by hand, and the prediction of an invented benchmark."""

import itertools
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.bench.contestant import Contestant, ContestantCommand
from common.bench.cost_model import (
    REDUCES,
    Compute,
    Link,
    Workload,
    expect_slowest,
    fit_compute,
    parameter_server,
    predict_examples_per_second,
    predict_local_examples_per_second,
    ring,
    tree,
)
from common.bench.figures import MeasuredContestant
from common.bench.options import ContestantDefinition, load_options
from common.bench.plan import PlannedContestant
from common.bench.prediction import REPLICAS, predict
from common.bench.result import BenchResult
from common.bench.result_tables import build_sections
from tests.conftest import MakeConfig

LINK = Link(alpha=1e-3, beta=1e-9)
COMPUTE = Compute(per_step=0.01, per_example=0.002)
SIZE = 4_000_000


def ring_by_hand(replicas: int, size: float) -> float:
    """Return the seconds of a ring: in every turn each replica sends one part of the buffer."""
    seconds = 0.0
    for _ in ("reduce-scatter", "all-gather"):
        for _ in range(replicas - 1):
            seconds += LINK.alpha + LINK.beta * size / replicas
    return seconds


def tree_by_hand(replicas: int, size: float) -> float:
    """Return the seconds of a tree: one replica of each pair sends to the other, and later receives the sum."""
    seconds, senders = 0.0, replicas
    while senders > 1:
        seconds += 2 * (LINK.alpha + LINK.beta * size)
        senders = (senders + 1) // 2
    return seconds


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5, 8, 100])
def test_the_formulas_equal_a_count_by_hand(replicas: int) -> None:
    assert ring(replicas, SIZE, LINK) == pytest.approx(ring_by_hand(replicas, SIZE))
    assert tree(replicas, SIZE, LINK) == pytest.approx(tree_by_hand(replicas, SIZE))


def test_a_server_exchanges_the_gradients_of_all_replicas() -> None:
    assert parameter_server(1, SIZE, LINK) == 0
    assert parameter_server(3, SIZE, LINK) == pytest.approx(2 * (1e-3 + 3 * SIZE * 1e-9))


@pytest.mark.parametrize("name", REDUCES)
def test_one_replica_reduces_nothing(name: str) -> None:
    assert predict_examples_per_second(COMPUTE, REDUCES[name], LINK, Workload(1, 16, SIZE)) == pytest.approx(16 / 0.042)


@given(st.floats(1e-4, 1), st.floats(1e-5, 1), st.sets(st.integers(1, 500), min_size=2, max_size=5))
def test_the_fit_recovers_the_costs(per_step: float, per_example: float, sizes: set[int]) -> None:
    fitted = fit_compute([(size, per_step + per_example * size) for size in sizes])
    assert fitted.per_step == pytest.approx(per_step, rel=1e-6, abs=1e-7)
    assert fitted.per_example == pytest.approx(per_example, rel=1e-6)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_slowest_of_some_replicas_is_the_mean_over_all_draws(replicas: int) -> None:
    times = (4.0, 1.0, 1.0, 2.0)
    draws = [max(draw) for draw in itertools.product(times, repeat=replicas)]
    assert expect_slowest(times, replicas) == pytest.approx(statistics.mean(draws) / statistics.mean(times))


def test_the_prediction_waits_for_the_slowest_replica() -> None:
    compute = replace(COMPUTE, step_times=(1.0, 3.0))
    workload = Workload(2, 8, SIZE)
    assert predict_examples_per_second(compute, ring, LINK, workload) == pytest.approx(
        2 * 8 / (0.026 * 1.25 + ring_by_hand(2, SIZE))
    )
    three = predict_local_examples_per_second(compute, ring, LINK, Workload(3, 8, SIZE), cores=2)
    assert three == pytest.approx(3 * 8 / (1.5 * (0.026 * 1.25 + ring_by_hand(3, SIZE)))), "two replicas at a time"


def test_replicas_share_the_cores_of_a_machine() -> None:
    two_replicas, four_replicas = (
        predict_local_examples_per_second(COMPUTE, ring, LINK, Workload(n, 8, SIZE), cores=2) for n in (2, 4)
    )
    assert two_replicas == pytest.approx(2 * 8 / (0.026 + ring_by_hand(2, SIZE)))
    assert four_replicas == pytest.approx(4 * 8 / (2 * (0.026 + ring_by_hand(4, SIZE))))


@pytest.fixture
def measured(tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> list[MeasuredContestant]:
    """Two rounds of four contestants. In the second round the machine is half as fast."""
    monkeypatch.setattr("common.hardware.count_cores", lambda: 2)

    def measure(
        name: str, definition: ContestantDefinition, replicas: int, batch: int, rows: list[dict[str, float]]
    ) -> MeasuredContestant:
        config = make_config(f"strategy={'allreduce' if replicas > 1 else 'single'}")
        strategy = replace(config.strategy, replicas=replicas)
        config = replace(config, strategy=strategy, train=replace(config.train, global_batch_size=batch))
        planned = PlannedContestant(definition, config, ContestantCommand(name, [], tmp_path), None, None, SIZE)
        times = ("seconds", "alpha", "beta")
        blocks = [[{key: row[key] * (n if key in times else 1) for key in row} for row in rows] for n in (1, 2)]
        return MeasuredContestant(planned, cast(Contestant, SimpleNamespace(name=name, blocks=blocks)))

    def steps(examples: float, seconds: float) -> list[dict[str, float]]:
        return [{"examples": 0, "tokens": 0, "seconds": 0}, {"examples": examples, "tokens": 0, "seconds": seconds}]

    core = ContestantDefinition("torch", cores=1)
    link = [{"seconds": 1.0, "alpha": LINK.alpha, "beta": LINK.beta}]
    return [
        measure("core_8", core, 1, 8, steps(8, 0.026)),
        measure("core_32", core, 1, 32, steps(32, 0.074)),
        measure("link", ContestantDefinition("torch", "link_rate"), 2, 32, link),
        measure("ring_x2", ContestantDefinition("torch"), 2, 16, steps(16, 0.026 + ring_by_hand(2, SIZE))),
    ]


@pytest.mark.slow
def test_the_prediction_and_its_checks(measured: list[MeasuredContestant]) -> None:
    options, _ = load_options(["bench.bandwidths=[8]", "bench.latency=0"])
    prediction = predict(options, measured)
    assert prediction is not None
    slowest = prediction["compute"].pop("slowest")  # type: ignore[misc]  # all steps took equally long
    assert slowest == pytest.approx([1.0] * 11)
    assert prediction["compute"] == pytest.approx({"per_step": 0.015, "per_example": 0.003}), (
        "the median of both rounds"
    )
    (check,) = prediction["checks"]
    assert check["name"] == "ring_x2" and check["replicas"] == 2
    assert check["ratio"] == pytest.approx({"median": 1, "lower": 1, "upper": 1}), (
        "the check uses the fit of the same round"
    )
    speeds = {speeds["reduce"]: speeds["predicted"] for speeds in prediction["examples_per_second"]}
    assert list(speeds) == ["ring", "tree", "parameter server"]
    assert len(speeds["ring"]) == len(REPLICAS) == 11 and REPLICAS[-1] == 1024
    assert speeds["ring"][1] == pytest.approx(2 * 32 / (0.111 + SIZE * 1e-9))
    held = {row["strategy"]: row["predicted"] for row in prediction["held_bytes"]}
    assert held["ddp"] == [4 * SIZE] * 11, "parameters, gradients and two slots"
    assert [held[kind][2] / SIZE for kind in held] == [4, 2.5, 1]


@pytest.mark.slow
def test_no_prediction_without_the_needed_contestants(measured: list[MeasuredContestant]) -> None:
    options, _ = load_options([])
    assert predict(options, measured[1:]) is None, "one size cannot be fitted"
    assert predict(options, [contestant for contestant in measured if contestant.name != "link"]) is None


@pytest.mark.slow
def test_the_prediction_has_tables(result: BenchResult, measured: list[MeasuredContestant]) -> None:
    options, _ = load_options([])
    result["prediction"] = predict(options, measured)
    titles = [section.title for section in build_sections(result)]
    assert titles == ["Benchmark", "Predicted here", "Predicted for more replicas", "Predicted memory of a replica"]
