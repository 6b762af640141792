"""By how much arrays of the two sides differ, and where in two models they differ first."""

from collections.abc import Mapping, Sequence

import numpy as np

from common.map.description import ComputedPass
from common.map.sublayers import LayerPair, Sublayer

LayerPairs = Sequence[LayerPair]
Settings = Mapping[str, object]
LARGE = 1e3  # times the smaller elements: these are judged by themselves
AROUND_ZERO = 1e-6  # the least norm where elements are judged apart: what is nothing but rounding is no difference


def relative_difference(a: np.ndarray, b: np.ndarray, least: float = 0) -> float:
    """|a - b| relative to the larger of their norms, or to `least` where that is more; infinite for what is no number.

    a, b: of one shape. Infinite elements must be equal. Elements that are far larger than others, such as masked ones
    of -1e9, are judged each by itself, since their norm would hide what the others differ by.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite]):
        return np.inf
    a, b = a[finite], b[finite]
    size = np.maximum(np.abs(a), np.abs(b))
    if not size.any():
        return 0
    large = size > LARGE * np.quantile(size[size > 0], 0.1)  # not the median: most may be masked
    least = max(least, AROUND_ZERO) if large.any() else least
    with np.errstate(over="ignore"):
        apart = np.abs(a - b)
    norm = max(float(np.linalg.norm(a[~large])), float(np.linalg.norm(b[~large])), least)
    each = apart[large] / np.maximum(size[large], least)
    return max(float(np.linalg.norm(apart[~large])) / norm if norm else 0, float(each.max(initial=0)))


def move_channels_last(array: np.ndarray) -> np.ndarray:
    """The second axis moved to the last place."""
    return np.moveaxis(array, 1, -1)


def possible_layouts(torch: np.ndarray, keras: np.ndarray) -> list[np.ndarray]:
    """PyTorch's array in the layouts that Keras's may have: as it is, or with its channels last."""
    found = [torch, move_channels_last(torch)] if torch.ndim >= 3 else [torch]
    return [each for each in found if each.shape == keras.shape]


def smallest_difference(
    torch: np.ndarray | None, keras: np.ndarray | None, flattened: tuple[int, ...] | None
) -> float | None:
    """The relative difference in the layout in which it is the least; None where the arrays cannot be compared.

    flattened: the shape of PyTorch's examples before they were flattened, where Keras's had their channels last.
    """
    if torch is None or keras is None or torch.size != keras.size or torch.shape[:1] != keras.shape[:1]:
        return None
    found = possible_layouts(torch, keras)
    if flattened is not None and torch.shape[1:] == (int(np.prod(flattened)),):
        found = [move_channels_last(torch.reshape(-1, *flattened)).reshape(torch.shape)]
    if not found and keras.ndim != torch.ndim:  # such as heads in an axis of their own
        found = [torch.reshape(keras.shape)]
    return min((relative_difference(each, keras) for each in found), default=None)


def explain_first_difference(parts: LayerPairs, torch: ComputedPass, keras: ComputedPass, tolerance: float) -> str:
    """In words: the first pair of layers, in the order of execution, whose outputs differ, and what explains it."""
    before = None
    for ours, theirs in parts:
        mine, other = torch.calls.get(ours.output or ""), keras.calls.get(theirs.output or "")
        if mine is None or other is None:
            continue
        moved = ours.flattened if ours.flattened and ours.flattened != theirs.flattened else None
        returned = smallest_difference(mine.returned, other.returned, moved if ours.kind != "linear" else None)
        if returned is None or returned <= tolerance:
            before = (ours, theirs) if returned is not None else before
            continue
        words = f"the first layer whose output differs is {_named(ours, theirs)}, by {returned:.1e} of its norm"
        whole = ours.path == ours.output  # not a part, which receives something else
        received = smallest_difference(mine.received, other.received, moved) if whole else None
        if received is not None and received > tolerance:
            between = f"between {_named(*before)} and it" if before else "before it"
            return f"{words}; what it receives differs already, by {received:.1e}: look {between}"
        return "; ".join([words, *_settings(ours, theirs)])
    after = f"after {_named(*before)}" if before else "at what has no parameters"
    return f"no output of a layer with parameters differs: look {after}"


def _named(ours: Sublayer, theirs: Sublayer) -> str:
    return f"{ours.path} (PyTorch) and {theirs.path} (Keras)"


def _settings(ours: Sublayer, theirs: Sublayer) -> list[str]:
    """What the layers should have in common and have not."""
    found = [
        f"{name} is {value} in PyTorch and {other} in Keras"
        for name, value, other in list_different_settings(ours.settings, theirs.settings)
    ]
    if theirs.settings.get("padding") == "same" and has_strides(theirs.settings):
        found.append("Keras pads more at the end than at the start for padding='same' with strides")
    return found


def list_different_settings(ours: Settings, theirs: Settings) -> list[tuple[str, object, object]]:
    """Name and values of what two layers have both, and differs. The momentum decides no output."""
    both = [(name, value, theirs[name]) for name, value in ours.items() if name in theirs and name != "momentum"]
    return [(name, x, y) for name, x, y in both if x != y and _numbers(x) != _numbers(y)]


def has_strides(settings: Settings) -> bool:
    """Whether a convolution leaves out places."""
    return max(_numbers(settings.get("stride"))) > 1


def _numbers(value: object) -> list[float]:
    """A number or several, all of None as 0; of a word none."""
    if isinstance(value, str):
        return []
    return [float(each) for each in np.ravel(np.asarray(0 if value is None else value, np.float64))]
