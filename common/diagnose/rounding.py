"""What rounding explains of a difference, in each precision."""

import numpy as np

from common.map.differences import relative

UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}  # in the last place of numbers near one
FLOORS = {"float64": 1e-12, "float32": 100 * 2.0**-23, "bfloat16": 2 * 2.0**-7}  # rounding, whatever noise was measured
MARGINS = {"float64": 100.0, "float32": 100.0, "bfloat16": 4.0}  # times the measured noise
EXACT = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 2e-2}  # what an explanation must reproduce
SAME = {"float64": 1e-6, "float32": 1e-3, "bfloat16": 0.1}  # factors that an explanation tells from each other
BITS = {"bfloat16": 8, "float16": 11, "float32": 24}  # of the mantissa, with the one that is not stored


def at_least_float32(precision: str) -> str:
    """Of weights, slots and losses: in bfloat16 only the model computes in that."""
    return "float32" if precision == "bfloat16" else precision


def tolerance(noise: float, precision: str = "float64") -> float:
    """The largest difference that rounding explains."""
    return max(FLOORS[precision], MARGINS[precision] * noise)


def narrowest(array: np.ndarray) -> str:
    """The narrowest type that holds all numbers of an array: bfloat16, float16, float32 or float64.

    By their values: neither framework hands bfloat16 to NumPy, and a sum in bfloat16 may be cast back to float32.
    """
    if array.dtype != np.float32:
        return "float64"
    if not (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(array.astype(np.float16), array, equal_nan=True) else "float32"


def precision_of(a: np.ndarray, b: np.ndarray) -> str:
    """The precision in which two arrays are compared: that of the one with more digits."""
    found = {narrowest(each) for each in (a, b)}
    if "float64" in found:
        return "float64"
    return "bfloat16" if found == {"bfloat16"} else "float32"


def close(a: np.ndarray, b: np.ndarray, exact: float | None = None) -> bool:
    """Whether a candidate is what was seen. exact: None for that of the array with fewer digits."""
    if exact is None:
        found = {narrowest(each) for each in (a, b)}
        exact = EXACT[next((each for each in ("bfloat16", "float32") if each in found), "float64")]
    norm = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return a.shape == b.shape and float(np.linalg.norm(a - b)) <= exact * norm


def disturbed(array: np.ndarray, unit: float, seed: int = 0) -> np.ndarray:
    """Its numbers with a random unit in the last place more or less."""
    stream = np.random.default_rng(seed)
    return np.asarray(array * (1 + unit * stream.choice([-1, 1], array.shape))).astype(array.dtype)


def noise(a: np.ndarray | None, disturbed: np.ndarray | None, otherwise: float = 0.0, least: float = 0.0) -> float:
    """What rounding does to an array. otherwise: where it was not measured. least: see `relative`."""
    if a is None or disturbed is None or a.shape != disturbed.shape:
        return otherwise
    found = relative(a, disturbed, least)
    return found if np.isfinite(found) else 0.0
