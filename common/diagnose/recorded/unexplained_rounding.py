"""Small differences that no mistake explains, before a much larger one."""

from common.diagnose.findings import Stage

LARGEST_ROUNDING = 1e-4  # a relative difference of a layer's output that rounding may cause in float32
MUCH_LARGER = 1000.0  # the factor between such a difference and a later one that it does not explain


def find_unexplained_rounding(stage: Stage) -> float | None:
    """Return the first difference if it is small, nothing explains it, and a later one is much larger; or None.

    A BatchNorm of a feature with a small variance, for example, may amplify the rounding of its input. It would hide
    the later difference, because layers behind a difference are not compared.
    """
    first = next((check for check in stage.checks if check.begins_here), None)
    if first is None or first.difference > LARGEST_ROUNDING or any(cause.confirmed for cause in stage.causes):
        return None
    differences = [check.difference for check in stage.checks]
    return first.difference if max(differences) > MUCH_LARGER * first.difference else None
