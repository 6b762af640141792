"""Settings of the averages of the weights, which a run keeps beside the weights: `ema` and `swa`.

Each field is a key of the config, such as ema.decay. conf/train.yaml has the default values and explains the keys.
"""

from dataclasses import dataclass

from common.config.keys import CURVE, key
from common.errors import UserError


@dataclass(frozen=True)
class EmaSettings:
    """An exponential moving average: average = decay * average + (1 - decay) * weights.

    The average starts with the weights after update `start_step`; 0 means the initial weights. It continues after every
    `every`-th update that follows. With `bias_corrected`, the average is divided by 1 - decay^n, as Adam divides its
    moments, and is thus the weighted mean of the n weights so far. `decay: null` keeps no average.
    """

    decay: float | None = key(CURVE, above=0, below=1, null="for no average")
    start_step: int = key(CURVE, at_least=0, unit="updates")
    bias_corrected: bool = key(CURVE)
    every: int = key(CURVE, at_least=1, unit="updates")


@dataclass(frozen=True)
class SwaSettings:
    """The mean of the weights after update `start_step` and after every `every`-th update that follows.

    `start_step: null` keeps no such mean.
    """

    start_step: int | None = key(CURVE, at_least=0, unit="updates", null="for no mean")
    every: int = key(CURVE, at_least=1, unit="updates")


def check_averages(ema: EmaSettings, swa: SwaSettings, steps: int) -> None:
    """Raise UserError if both averages are kept, or if one never starts in a run of this number of steps."""
    if ema.decay is not None and swa.start_step is not None:
        raise UserError(
            f"ema.decay={ema.decay:g} and swa.start_step={swa.start_step}: a run keeps one average; remove one"
        )
    name, start = ("ema", ema.start_step) if ema.decay is not None else ("swa", swa.start_step)
    if start is not None and start > steps:
        raise UserError(f"{name}.start_step={start}: the run has {steps} steps, so the average would never start")
