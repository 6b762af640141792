"""Rounding errors in each precision: their size, and the tolerances that follow from it.

The noise of an array is the relative difference that rounding alone causes in the array. To measure noise, a diagnosis
repeats a computation with weights that are moved by one machine epsilon. An explanation is a computation that should
reproduce an array.
"""

import numpy as np

from common.map.array_differences import compute_norm, relative_difference

# The distance between 1 and the next larger number of each precision
MACHINE_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}
# The smallest tolerance of a relative difference, however small the measured noise is
SMALLEST_TOLERANCE = {"float64": 1e-12, "float32": 100 * 2.0**-23, "bfloat16": 2 * 2.0**-7}
# The tolerance as a multiple of the measured noise
NOISE_FACTOR = {"float64": 100.0, "float32": 100.0, "bfloat16": 4.0}
# The largest relative difference between an array and an explanation that reproduces it
EXPLANATION_TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 2e-2}
# The largest relative difference between two numbers, such as learning rates, that count as equal
FACTOR_TOLERANCE = {"float64": 1e-6, "float32": 1e-3, "bfloat16": 0.1}
# The length of a mantissa, including the leading bit that is not stored
SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}


def precision_of_weights(precision: str) -> str:
    """Return the precision of weights, slots and losses if a run trains in `precision`.

    A run in bfloat16 uses bfloat16 inside the model only and keeps everything else in float32.
    """
    return "float32" if precision == "bfloat16" else precision


def rounding_tolerance(noise: float, precision: str = "float64") -> float:
    """Return the largest relative difference that rounding explains."""
    return max(SMALLEST_TOLERANCE[precision], NOISE_FACTOR[precision] * noise)


def find_narrowest_type(array: np.ndarray) -> str:
    """Return the narrowest of bfloat16, float16, float32 and float64 that holds every number of an array.

    The values decide, not the dtype: neither framework passes bfloat16 to NumPy, and a sum in bfloat16 may have been
    cast back to float32.
    """
    if array.dtype != np.float32:
        return "float64"
    if not (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(array.astype(np.float16), array, equal_nan=True) else "float32"


def find_common_precision(a: np.ndarray, b: np.ndarray) -> str:
    """Return the precision in which two arrays are compared: the finer one of the two, but not float16.

    An array in float16 is compared in float32.
    """
    types = {find_narrowest_type(a), find_narrowest_type(b)}
    if "float64" in types:
        return "float64"
    return "bfloat16" if types == {"bfloat16"} else "float32"


def is_close(a: np.ndarray, b: np.ndarray, tolerance: float | None = None) -> bool:
    """Check whether two arrays have one shape and equal values, up to rounding.

    Args:
        a: First array.
        b: Second array.
        tolerance: Largest relative difference; None chooses it by the array with fewer digits.
    """
    if a.shape != b.shape:
        return False
    if tolerance is None:
        types = {find_narrowest_type(a), find_narrowest_type(b)}
        precision = next((name for name in ("bfloat16", "float32") if name in types), "float64")
        tolerance = EXPLANATION_TOLERANCE[precision]
    # NumPy subtracts no bools, and unsigned integers without a sign.
    a, b = (array.astype(np.float64) if array.dtype.kind in "bu" else array for array in (a, b))
    norm = max(compute_norm(a), compute_norm(b))
    return bool(np.isfinite(norm)) and compute_norm(a - b) <= tolerance * norm


def perturb(array: np.ndarray, epsilon: float, seed: int = 0) -> np.ndarray:
    """Multiply every number at random by 1 + epsilon or 1 - epsilon."""
    stream = np.random.default_rng(seed)
    is_larger = stream.integers(2, size=array.shape, dtype=bool)
    return np.asarray(array * np.where(is_larger, 1 + epsilon, 1 - epsilon)).astype(array.dtype)


def measure_noise(
    array: np.ndarray | None, perturbed: np.ndarray | None, default: float = 0.0, min_norm: float = 0.0
) -> float:
    """Return the noise of an array: its relative difference from the same array after a perturbation of its inputs.

    Args:
        array: Result of the original computation.
        perturbed: Result of the perturbed computation.
        default: Result if the two arrays cannot be compared.
        min_norm: Norm to which the difference is relative if the arrays' norms are smaller.
    """
    if array is None or perturbed is None or array.shape != perturbed.shape:
        return default
    difference = relative_difference(array, perturbed, min_norm)
    return difference if np.isfinite(difference) else 0.0  # an overflow does not measure rounding
