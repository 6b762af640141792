"""The settings that benchmarks/network.py trains with, and the prediction of their seconds per step."""

from dataclasses import dataclass

import numpy as np

from benchmarks.network_report import LinkMeasurement
from torch_impl.communication.cost_model import predict_seconds

MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """A setting to train with. It differs in one value from the first of SETTINGS, or from the one named "DDP"."""

    name: str
    algorithm: str = "ring"
    bucket_mb: float = 25.0  # MiB of gradients that one all-reduce sums together
    overlap: bool = True  # whether all-reduces run during backward
    hook: str | None = None  # the communication hook of DDP; None: strategy=allreduce instead of DDP

    def arguments(self) -> list[str]:
        """Return the arguments of the training command."""
        shared = [f"strategy.bucket_cap_mb={self.bucket_mb}", f"strategy.overlap={str(self.overlap).lower()}"]
        if self.hook is None:
            return ["strategy=allreduce", f"strategy.algorithm={self.algorithm}", *shared]
        return ["strategy=ddp", f"strategy.comm_hook={self.hook}", *shared]


SETTINGS = (
    Setting("ring, 25 MiB buckets, overlap"),
    Setting("gather_broadcast", algorithm="gather_broadcast"),
    Setting("5 MiB buckets", bucket_mb=5.0),
    Setting("1 MiB buckets", bucket_mb=1.0),
    Setting("1 MiB buckets, no overlap", bucket_mb=1.0, overlap=False),
    Setting("no overlap", overlap=False),
    Setting("DDP", hook="none"),
    Setting("DDP, bf16 hook", hook="bf16"),
    Setting("DDP, PowerSGD hook", hook="powersgd"),
)


def predict_step_seconds(setting: Setting, shapes: list[tuple[int, ...]], link: LinkMeasurement) -> float:
    """Return the predicted seconds of a step of two ranks, for computing and for the all-reduces together.

    With overlap the buckets travel while backward runs, which takes two thirds of the computing. The last bucket can
    only start when backward ends.

    Args:
        setting: The setting.
        shapes: The shapes of the parameters, in the order of the forward pass.
        link: The measured link.
    """
    buckets = [0.0]  # bytes of each
    for shape in reversed(shapes):  # backward computes the gradients of the last parameters first
        size = 4.0 * float(np.prod(shape))
        if buckets[-1] and buckets[-1] + size > setting.bucket_mb * MIB:
            buckets.append(0.0)
        buckets[-1] += size
    if setting.hook == "bf16":
        buckets = [size / 2 for size in buckets]
    if setting.hook == "powersgd":
        buckets = [sum(_powersgd_bytes(shape) for shape in shapes)]
    times = [predict_seconds(setting.algorithm, 2, size, link.alpha, link.beta) for size in buckets]
    if not setting.overlap:
        return link.computing + sum(times)
    forward, backward = link.computing / 3, link.computing * 2 / 3
    end = forward
    for index, seconds in enumerate(times, 1):  # bucket k of K is ready when k/K of backward is done
        end = max(end, forward + backward * index / len(times)) + seconds
    return end


def _powersgd_bytes(shape: tuple[int, ...]) -> float:
    """Return the size of a gradient that PowerSGD compresses to rank 1, if two vectors are less than half as large."""
    rows, columns = shape[0], int(np.prod(shape[1:]))
    compressed = len(shape) > 1 and 2 * (rows + columns) < rows * columns
    return 4.0 * (rows + columns if compressed else rows * columns)
