"""Prediction of the speed with more replicas from the measurements of a benchmark, and its error on this machine."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common import hardware
from common.bench.cost_model import (
    DIVIDED,
    REDUCES,
    Compute,
    Link,
    Workload,
    expect_slowest,
    fit_compute,
    predict_examples_per_second,
    predict_held_bytes,
    predict_local_examples_per_second,
)
from common.bench.figures import MeasuredContestant, Spread
from common.bench.options import LINK_SCRIPT, BenchOptions
from common.bench.result import Prediction, PredictionCheck

REPLICAS = [2**exponent for exponent in range(11)]  # the numbers of replicas to predict for
CHECKED = "allreduce"  # the strategy whose measured speed is compared with the prediction for a ring


def predict(options: BenchOptions, measured: Sequence[MeasuredContestant]) -> Prediction | None:
    """Return the content of `prediction` in bench.json; None if the benchmark lacks the measurements.

    The prediction needs the script that measures how fast two processes sum gradients, and contestants that train one
    replica on one core with at least two global batch sizes.
    """
    links = [contestant for contestant in measured if contestant.planned.definition.script == LINK_SCRIPT]
    singles = [contestant for contestant in measured if _is_single_core(contestant)]
    if not links or len({contestant.planned.config.train.global_batch_size for contestant in singles}) < 2:
        return None
    rounds = range(len(links[0].contestant.blocks))
    step_times = _compare_step_times(singles)
    computes_by_round = [_fit_round(singles, index, step_times) for index in rounds]
    links_by_round = [_read_link(links[0], index) for index in rounds]
    compute = Compute(
        statistics.median(fit.per_step for fit in computes_by_round),
        statistics.median(fit.per_example for fit in computes_by_round),
        step_times,
    )
    gradient_bytes, config = singles[0].planned.gradient_bytes, singles[0].planned.config
    examples = max(contestant.planned.config.train.global_batch_size for contestant in singles)
    checked = [
        contestant
        for contestant in measured
        if contestant.planned.config.strategy.kind == CHECKED and contestant.planned.is_training
    ]
    return {
        "compute": {
            "per_step": compute.per_step,
            "per_example": compute.per_example,
            "slowest": [expect_slowest(step_times, replicas) for replicas in REPLICAS],
        },
        "link": {
            "alpha": statistics.median(link.alpha for link in links_by_round),
            "beta": statistics.median(link.beta for link in links_by_round),
        },
        "gradient_bytes": gradient_bytes,
        "examples_per_replica": examples,
        "latency": options.latency,
        "replicas": REPLICAS,
        "examples_per_second": [
            {
                "gbit_per_second": bandwidth,
                "reduce": name,
                "predicted": [
                    predict_examples_per_second(
                        compute,
                        reduce,
                        Link(options.latency, 8 / (bandwidth * 1e9)),
                        Workload(replicas, examples, gradient_bytes),
                    )
                    for replicas in REPLICAS
                ],
            }
            for bandwidth in options.bandwidths
            for name, reduce in REDUCES.items()
        ],
        "held_bytes": [
            {
                "strategy": strategy,
                "predicted": [
                    predict_held_bytes(strategy, replicas, gradient_bytes, len(config.slots)) for replicas in REPLICAS
                ],
            }
            for strategy in DIVIDED
            if not config.optimizer.uses_layout  # the slots of such an optimizer have other shapes than the parameters
        ],
        "checks": [_check_prediction(contestant, computes_by_round, links_by_round) for contestant in checked],
    }


def _is_single_core(measured: MeasuredContestant) -> bool:
    """Check whether a contestant is a run of Lockstep with one replica on one core."""
    planned = measured.planned
    has_one_core = planned.definition.cores == 1 and planned.config.strategy.world_size == 1
    return has_one_core and planned.is_training and planned.definition.script is None


def _compare_step_times(singles: Sequence[MeasuredContestant]) -> tuple[float, ...]:
    """Return the time of each measured step, for a token if they are counted, in units of the median of its block.

    The tokens of a step are divided equally over the replicas, so that more tokens make none of them wait.
    """
    times = []
    for block in (block for contestant in singles for block in contestant.contestant.blocks):
        seconds = np.diff([row["seconds"] for row in block])
        tokens = np.diff([row["tokens"] for row in block])
        block_times = seconds / tokens if tokens.all() else seconds
        times += (block_times / np.median(block_times)).tolist()
    return tuple(times)


def _fit_round(singles: Sequence[MeasuredContestant], index: int, step_times: tuple[float, ...]) -> Compute:
    """Fit the cost of computing to the measurements of one round. step_times: the times of steps, in any unit."""
    sizes = [contestant.planned.config.train.global_batch_size for contestant in singles]
    steps = [
        (size, size / contestant.rates["examples"][index]) for size, contestant in zip(sizes, singles, strict=True)
    ]
    return replace(fit_compute(steps), step_times=step_times)


def _read_link(measured: MeasuredContestant, index: int) -> Link:
    """Return the link that the script measured in one round."""
    rows = measured.contestant.blocks[index]
    return Link(statistics.median(row["alpha"] for row in rows), statistics.median(row["beta"] for row in rows))


def _check_prediction(
    measured: MeasuredContestant, computes: Sequence[Compute], links: Sequence[Link]
) -> PredictionCheck:
    """Compare the measured with the predicted speed in every round. `computes` and `links` have an entry per round."""
    planned = measured.planned
    replicas, cores = planned.config.strategy.world_size, planned.definition.cores or hardware.count_cores()
    workload = Workload(replicas, planned.config.train.global_batch_size / replicas, planned.gradient_bytes)
    predicted = [
        predict_local_examples_per_second(compute, REDUCES["ring"], link, workload, cores)
        for compute, link in zip(computes, links, strict=True)
    ]
    speeds = measured.rates["examples"]
    return {
        "name": measured.name,
        "replicas": replicas,
        "measured": statistics.median(speeds),
        "predicted": statistics.median(predicted),
        "ratio": Spread.of([speed / expected for speed, expected in zip(speeds, predicted, strict=True)]).as_row(),
    }
