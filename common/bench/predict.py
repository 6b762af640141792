"""How fast more replicas would be, on paper: a fit of computing, and the alpha-beta model of communication.

A message of m bytes takes alpha + m beta seconds: the latency, and the time for a byte (Hockney, "The communication
challenge for MPP: Intel Paragon and Meiko CS-2", 1994). A step is computing, then reducing the gradients; nothing of
the one is hidden behind the other.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Compute:
    """Seconds of one core for a step of a replica, without communication: per_step + per_example * its examples."""

    per_step: float
    per_example: float

    def seconds(self, examples: float) -> float:
        """Of a step of so many examples."""
        return self.per_step + self.per_example * examples


@dataclass(frozen=True)
class Link:
    """alpha in seconds, beta in seconds for a byte. A replica can send and receive at the same time."""

    alpha: float
    beta: float


Reduce = Callable[[int, float, Link], float]


def ring(replicas: int, size: float, link: Link) -> float:
    """Seconds to sum `size` bytes over a ring: N - 1 exchanges of 1/N of them, and as many again to spread the sums.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    return 2 * (replicas - 1) * (link.alpha + size / replicas * link.beta)


def tree(replicas: int, size: float, link: Link) -> float:
    """Seconds to sum over a binomial tree and to broadcast the sum over it.

    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """
    return 2 * math.ceil(math.log2(replicas)) * (link.alpha + size * link.beta)


def parameter_server(replicas: int, size: float, link: Link) -> float:
    """Seconds until one server has received the gradients of all replicas and has sent them the parameters.

    Its link carries all of them. Li et al., "Scaling distributed machine learning with the parameter server", 2014,
    divides them among several servers, which divides the time for the bytes.
    """
    return 2 * (link.alpha + replicas * size * link.beta) if replicas > 1 else 0.0


REDUCES: dict[str, Reduce] = {"ring": ring, "tree": tree, "parameter server": parameter_server}


def fit_compute(steps: Sequence[tuple[float, float]]) -> Compute:
    """Least squares through (examples, seconds) of steps of one replica on one core; two sizes or more."""
    examples, seconds = np.array(steps).T
    per_example, per_step = np.polyfit(examples, seconds, 1)
    return Compute(float(per_step), float(per_example))


def examples_per_second(
    compute: Compute, reduce: Reduce, link: Link, replicas: int, examples: float, size: float
) -> float:
    """Of replicas that have a core and a link each. examples: of a replica's step. size: bytes of the gradients."""
    return replicas * examples / (compute.seconds(examples) + reduce(replicas, size, link))


def local_examples_per_second(
    compute: Compute, reduce: Reduce, link: Link, replicas: int, examples: float, size: float, cores: int
) -> float:
    """The same of replicas that share the cores of one machine; link: of two of them that have a core each.

    Where there are more replicas than cores, computing and copying take so many times as long.
    """
    shared = max(1.0, replicas / cores)
    return replicas * examples / (shared * (compute.seconds(examples) + reduce(replicas, size, link)))
