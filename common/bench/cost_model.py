"""A model of the speed with more replicas: a linear cost of computing, and the alpha-beta model of communication.

A message of m bytes takes alpha + m beta seconds: the latency, and the time for each byte (Hockney, "The communication
challenge for MPP: Intel Paragon and Meiko CS-2", 1994). A step first computes and then reduces the gradients, which
means that the replicas sum them. The two do not overlap. The reduction waits for the slowest replica.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Compute:
    """Seconds of one core for a step of a replica: per_step + per_example * examples on average.

    Attributes:
        step_times: the times of measured steps, in units of their mean.
    """

    per_step: float
    per_example: float
    step_times: tuple[float, ...] = (1.0,)

    def seconds(self, examples: float, replicas: int) -> float:
        """Return the seconds until the slowest of some replicas, each with this many examples, has computed a step."""
        return (self.per_step + self.per_example * examples) * expect_slowest(self.step_times, replicas)


@dataclass(frozen=True)
class Link:
    """The link of a replica: alpha in seconds, beta in seconds per byte. It sends and receives at the same time."""

    alpha: float
    beta: float


def expect_slowest(times: Sequence[float], replicas: int) -> float:
    """Return the expected maximum of independent draws from measured times, one for each replica, over their mean.

    The i-th of n sorted times is the maximum of N draws with the probability (i / n)^N - ((i - 1) / n)^N.

    Source: David and Nagaraja, "Order Statistics", 2003, section 2.1.
    """
    ordered = np.sort(times)
    probabilities = np.diff((np.arange(len(ordered) + 1) / len(ordered)) ** replicas)
    return float(probabilities @ ordered / ordered.mean())


# Predicts the seconds of a reduction from the number of replicas, the bytes and the link between the replicas
Reduce = Callable[[int, float, Link], float]


def ring(replicas: int, size: float, link: Link) -> float:
    """Return the seconds to sum `size` bytes over a ring.

    With N replicas, N - 1 exchanges of 1/N of the bytes sum them, and N - 1 further exchanges spread the sums.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    return 2 * (replicas - 1) * (link.alpha + size / replicas * link.beta)


def tree(replicas: int, size: float, link: Link) -> float:
    """Return the seconds to sum `size` bytes over a binomial tree and to broadcast the sum over it.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """
    return 2 * math.ceil(math.log2(replicas)) * (link.alpha + size * link.beta)


def parameter_server(replicas: int, size: float, link: Link) -> float:
    """Return the seconds until one server has received all gradients and has sent the parameters to all replicas.

    The link of the server carries all of these bytes. Several servers divide the time for the bytes by their number.

    Source: Li et al., "Scaling distributed machine learning with the parameter server", 2014.
    """
    return 2 * (link.alpha + replicas * size * link.beta) if replicas > 1 else 0.0


REDUCES: dict[str, Reduce] = {"ring": ring, "tree": tree, "parameter server": parameter_server}


# The arrays that each strategy divides over the replicas
DIVIDED: dict[str, tuple[str, ...]] = {"ddp": (), "zero": ("slots",), "fsdp": ("parameters", "gradients", "slots")}


@dataclass(frozen=True)
class Workload:
    """The replicas of a run: their number, the examples of each in a step, and the bytes of the gradients."""

    replicas: int
    examples: float
    gradient_bytes: float


def predict_held_bytes(strategy: str, replicas: int, gradient_bytes: int, slots: int) -> float:
    """Return the bytes of parameters, gradients and slots that a replica holds between two steps.

    `zero` may hold more, since it divides the slots by whole parameters. While `fsdp` computes a layer, a replica also
    holds the parameters of the layer. The prediction is for one copy of the model: with `strategy.copies=N`, `fsdp`
    divides by replicas / N only.

    Args:
        strategy: ddp, zero or fsdp.
        replicas: The number of replicas.
        gradient_bytes: The bytes of all gradients. The parameters and each kind of slot have as many bytes.
        slots: The number of slots of each parameter.

    Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
    """
    sizes = {"parameters": gradient_bytes, "gradients": gradient_bytes, "slots": slots * gradient_bytes}
    return sum(size / (replicas if name in DIVIDED[strategy] else 1) for name, size in sizes.items())


def fit_compute(steps: Sequence[tuple[float, float]]) -> Compute:
    """Fit the cost of computing by least squares.

    Args:
        steps: The examples and seconds of steps of one replica on one core, with at least two numbers of examples.
    """
    examples, seconds = np.array(steps).T
    per_example, per_step = np.polyfit(examples, seconds, 1)
    return Compute(float(per_step), float(per_example))


def predict_examples_per_second(compute: Compute, reduce: Reduce, link: Link, workload: Workload) -> float:
    """Return the speed of replicas that each have a core and a link."""
    return predict_local_examples_per_second(compute, reduce, link, workload, cores=workload.replicas)


def predict_local_examples_per_second(
    compute: Compute, reduce: Reduce, link: Link, workload: Workload, cores: int
) -> float:
    """Return the speed of replicas that share the cores of one machine.

    If there are more replicas than cores, computing and copying take proportionally longer, and no core waits for
    another while it has a replica to compute.

    Args:
        compute: The cost of computing on one core.
        reduce: The way to reduce.
        link: The link between two processes that have a core each.
        workload: The replicas.
        cores: The number of cores.
    """
    replicas_per_core = max(1.0, workload.replicas / cores)
    compute_seconds = compute.seconds(workload.examples, min(workload.replicas, cores))
    reduce_seconds = reduce(workload.replicas, workload.gradient_bytes, link)
    return workload.replicas * workload.examples / (compute_seconds + reduce_seconds) / replicas_per_core
