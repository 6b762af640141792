"""From a benchmark's own measurements to a prediction for more replicas, and how far it is from what was measured."""

import statistics
from collections.abc import Sequence
from typing import Any

from common import hardware
from common.bench.figures import Measured, Spread
from common.bench.predict import REDUCES, Compute, Link, examples_per_second, fit_compute, local_examples_per_second
from common.bench.settings import LINK, Settings

REPLICAS = [2**exponent for exponent in range(11)]
CHECKED = "allreduce"  # the strategy with the ring that is predicted


def prediction(settings: Settings, measured: Sequence[Measured]) -> dict[str, Any] | None:
    """The content of bench.json's `prediction`; None where the benchmark has not measured what it needs.

    That is how fast two processes sum gradients, and training with one replica on one core at two global batch sizes or
    more.
    """
    links = [each for each in measured if each.planned.definition.script == LINK]
    singles = [each for each in measured if _is_single(each)]
    if not links or len({each.planned.config.train.global_batch_size for each in singles}) < 2:
        return None
    rounds = range(len(links[0].contestant.blocks))
    fits = [_fit(singles, number) for number in rounds]
    local = [_link(links[0], number) for number in rounds]
    size = singles[0].planned.gradient_bytes
    compute = Compute(*(statistics.median(getattr(fit, key) for fit in fits) for key in ("per_step", "per_example")))
    examples = max(each.planned.config.train.global_batch_size for each in singles)
    given = [(speed, Link(settings.latency, 8 / (speed * 1e9))) for speed in settings.bandwidths]
    checks = [each for each in measured if each.planned.config.strategy.kind == CHECKED and each.planned.is_training]
    return {
        "compute": vars(compute),
        "link": {key: statistics.median(getattr(link, key) for link in local) for key in ("alpha", "beta")},
        "gradient_bytes": size,
        "examples_per_replica": examples,
        "latency": settings.latency,
        "replicas": REPLICAS,
        "examples_per_second": [
            {
                "gbit_per_second": speed,
                "reduce": name,
                "predicted": [examples_per_second(compute, reduce, link, n, examples, size) for n in REPLICAS],
            }
            for speed, link in given
            for name, reduce in REDUCES.items()
        ],
        "checks": [_check(each, fits, local) for each in checks],
    }


def _is_single(one: Measured) -> bool:
    planned = one.planned
    alone = planned.definition.cores == 1 and planned.config.strategy.world_size == 1
    return alone and planned.is_training and planned.definition.script is None


def _fit(singles: Sequence[Measured], number: int) -> Compute:
    """From one round."""
    sizes = [each.planned.config.train.global_batch_size for each in singles]
    return fit_compute(
        [(size, size / each.rates["examples"][number]) for size, each in zip(sizes, singles, strict=True)]
    )


def _link(one: Measured, number: int) -> Link:
    rows = one.contestant.blocks[number]
    return Link(*(statistics.median(row[key] for row in rows) for key in ("alpha", "beta")))


def _check(one: Measured, fits: Sequence[Compute], links: Sequence[Link]) -> dict[str, Any]:
    """Measured over predicted, in every round."""
    config, size = one.planned.config, one.planned.gradient_bytes
    replicas, cores = config.strategy.world_size, one.planned.definition.cores or hardware.count_cores()
    examples = config.train.global_batch_size / replicas
    predicted = [
        local_examples_per_second(fit, REDUCES["ring"], link, replicas, examples, size, cores)
        for fit, link in zip(fits, links, strict=True)
    ]
    ratio = Spread.of([measured / each for measured, each in zip(one.rates["examples"], predicted, strict=True)])
    return {
        "name": one.name,
        "replicas": replicas,
        "measured": statistics.median(one.rates["examples"]),
        "predicted": statistics.median(predicted),
        "ratio": vars(ratio),
    }
