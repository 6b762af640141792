"""A model of the time that the algorithms of allreduce.py take, and its fit to measured messages.

In the docstrings N is the world size and n the size of the buffer in bytes.
"""

from collections.abc import Sequence

import numpy as np


def predict_seconds(algorithm: str, world_size: int, size: float, alpha: float, beta: float) -> float:
    """Predict the seconds of an all-reduce of `size` bytes with the alpha-beta model (Hockney, 1994).

    A message takes alpha seconds, and beta seconds more for each byte. A rank sends one message at a time. The model
    ignores the time of the summation. P is the largest power of two up to N, and s = N - P. The predictions are:

    gather_broadcast    2(N-1) (alpha + n beta), the time of rank 0
    all_to_all          (N-1) (alpha + n beta)
    ring                2(N-1) (alpha + n/N beta)
    recursive_doubling  log2 P (alpha + n beta), plus 2 (alpha + n beta) if s > 0
    native              as ring, which is Gloo's algorithm
    """
    doublings = world_size.bit_length() - 1
    has_surplus = world_size > 1 << doublings
    whole, chunk = alpha + size * beta, alpha + size / world_size * beta
    return {
        "gather_broadcast": 2 * (world_size - 1) * whole,
        "all_to_all": (world_size - 1) * whole,
        "ring": 2 * (world_size - 1) * chunk,
        "recursive_doubling": (doublings + 2 * has_surplus) * whole,
        "native": 2 * (world_size - 1) * chunk,
    }[algorithm]


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit alpha (seconds per message) and beta (seconds per byte) to messages of at least two sizes.

    The fit minimizes the squares of the relative errors, so that small messages count as much as large ones. Negative
    results become 0.

    Args:
        sizes: bytes of each message.
        seconds: the measured time of each message.
    """
    times = np.asarray(seconds)
    terms = np.stack([np.ones_like(times), np.asarray(sizes)], axis=1) / times[:, None]
    scale = np.linalg.norm(terms, axis=0)  # the columns for messages and for bytes are many powers of ten apart
    (alpha, beta), *_ = np.linalg.lstsq(terms / scale, np.ones_like(times), rcond=None)
    return max(0.0, float(alpha / scale[0])), max(0.0, float(beta / scale[1]))


def compute_bus_bandwidth(world_size: int, size: float, seconds: float) -> float:
    """Return the bytes per second that a link must carry for any algorithm: 2(N-1)/N n / seconds.

    Source: the documentation of nccl-tests.
    """
    return 2 * (world_size - 1) / world_size * size / seconds
