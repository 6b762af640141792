"""The averages of the weights that ema.* and swa.* configure, as one recursion.

After each update, average += share * (weights - average). A share of 1 makes the weights the average; a share of 0
leaves the average as it is.
"""

from common.config.averages import EmaSettings, SwaSettings


def compute_share(ema: EmaSettings, swa: SwaSettings, step: int) -> float:
    """Return the share of the weights in their average after update `step`, from 1.

    Without bias correction the formula is as in torch.optim.swa_utils and in keras.optimizers (use_ema). With n
    updates in the average, the mean of n weights has the share 1 / n, and the moving average divided by
    1 - decay^n has the share (1 - decay) / (1 - decay^n).
    """
    start, every = (ema.start_step, ema.every) if swa.start_step is None else (swa.start_step, swa.every)
    averaged_before, skipped = divmod(step - start, every)
    averaged = averaged_before + 1  # the number of updates whose weights are in the average, including this update
    if averaged_before >= 0 and skipped:
        return 0.0
    if averaged <= 1:
        return 1.0
    if swa.start_step is not None:
        return 1 / averaged
    assert ema.decay is not None
    return (1 - ema.decay) / (1 - ema.decay**averaged if ema.bias_corrected else 1.0)
