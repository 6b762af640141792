"""Differences between sums of the form weights @ rows, as in attention pooling and in a user's own attention.

The weights come from one score for each sum and row, for example softmax(scores + mask). The scores are the output of a
layer, query @ key, or, as in graph attention, score[i, j] = u[i] + v[j] with outputs u and v.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
from scipy.special import expit, softmax

from common.diagnose.explain.activation_difference import ACTIVATIONS, LEAST_ELEMENTS, NO_ACTIVATION
from common.diagnose.explain.code_section import CodeSection
from common.diagnose.explain.sums import Terms
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

NO_MASK = "no mask"
MOST_SCORES = 2**14  # number of scores above which only those of the first examples are computed
MOST_SCORES_OF_EXAMPLE = 2**20  # largest number of scores of an example; more take too much memory and time
FIRST_SUMS = 4  # number of sums of each example that are computed in a quick first check
SAMPLE_TOLERANCE = 1e-5  # relative tolerance of these sums
MOST_TERMS = 6  # number of the latest arrays that are tried as rows
# Activations that the sum of two scores may have, and that the sums of rows may have
SCORE_ACTIVATIONS = (NO_ACTIVATION, "leaky relu of slope 0.2", "leaky relu of slope 0.01", "relu", "tanh")
FINAL_ACTIVATIONS = ("relu", "elu", "tanh", "sigmoid", "exact gelu", "leaky relu of slope 0.2")
# The functions that may compute the weights from scores [n, sums, rows]
WEIGHTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax over the rows": lambda scores: softmax(scores, 2),
    "softmax over the sums": lambda scores: softmax(scores, 1),
    "softmax over the examples": lambda scores: softmax(scores, 0),
    "sigmoid": expit,
    NO_ACTIVATION: lambda scores: scores,
}
CAUSES = {"mask": "attention_mask", "scale": "attention_scale", "scores": "activation", "weights": "activation"}


@dataclass(frozen=True)
class Scores:
    """Scores [n, sums, rows] before their mask and softmax.

    Attributes:
        title: Description of the scores in reports.
        array: The scores.
        scales: Factors of the scores that are tried.
        activations: Names of the activations of the scores that are tried.
    """

    title: str
    array: np.ndarray
    scales: tuple[float, ...] = (1.0,)
    activations: tuple[str, ...] = (NO_ACTIVATION,)


@dataclass(frozen=True)
class Weighting:
    """Weights [n, sums, rows] of the first examples. `choices` are the mask, scale, ... that lead to the weights."""

    choices: Mapping[str, str]
    array: np.ndarray


@np.errstate(all="ignore")
def explain_scored_sum(section: CodeSection) -> Explanation | None:
    """Explain the difference of masks or weights if A and B compute weights @ rows of an earlier array, or return None.

    Both sides may add another array, or apply an activation.
    """
    if section.a.ndim < 2 or section.a.size < LEAST_ELEMENTS:
        return None
    if not section.a.any() or not section.b.any():  # a mask of zeros gives such an array for any scores
        return None
    a, b = (array[:, None] if array.ndim == 2 else _join_places(array) for array in (section.a, section.b))
    terms = [(title, _join_places(array)) for title, array in reversed(section.shared_terms)]
    terms = [(title, array) for title, array in terms if array.ndim in (2, 3) and len(array) == len(a)]
    row_terms = [(title, rows) for title, rows in terms if rows.ndim == 3 and rows.shape[2] == a.shape[2]][:MOST_TERMS]
    for row_count in dict.fromkeys(rows.shape[1] for _, rows in row_terms):
        if row_count < 2 or a.shape[1] * row_count > MOST_SCORES_OF_EXAMPLE:
            continue
        for scores in _list_scores(section, terms, a.shape[1], row_count):
            weightings = list(_list_weightings(section, scores))
            for title, rows in row_terms:
                pair = _find_pair(weightings, rows, a, b) if rows.shape[1] == row_count and weightings else None
                if pair is not None:
                    place = f"{section.place}: the sum of the rows of {title}, weighted by {scores.title}"
                    return _describe(place, *pair)
    return None


def _list_scores(section: CodeSection, terms: Terms, sums: int, rows: int) -> Iterator[Scores]:
    """Yield scores [n, sums, rows] that are an earlier array, or come from the outputs of two of the latest layers."""
    for title, array in terms:
        shape = array.shape[1:]
        if shape == (sums, rows):
            yield Scores(title, array)
        elif sums == 1 and shape in ((rows,), (rows, 1)):
            yield Scores(title, array.reshape(len(array), 1, rows))
    latest = [(title, _join_places(array)) for title, array in reversed(section.known_outputs) if array.ndim > 2]
    for (query_title, query), (key_title, key) in permutations(latest, 2):
        if query.shape[1] != sums or key.shape[1] != rows or query.shape[2] != key.shape[2] or len(query) != len(key):
            continue
        features = query.shape[2]
        names = f"the output of {query_title}", f"the output of {key_title}"
        if features == 1:
            yield Scores(" plus ".join(names), query + key.swapaxes(1, 2), activations=SCORE_ACTIVATIONS)
        else:
            yield Scores(" times ".join(names), query @ key.swapaxes(1, 2), (1.0, features**-0.5))


def _list_weightings(section: CodeSection, scores: Scores) -> Iterator[Weighting]:
    """Yield the weights that follow from each mask, scale, activation and softmax of the scores."""
    count = max(1, MOST_SCORES // scores.array[0].size)
    masks = {NO_MASK: np.ones((1, 1, 1), bool), **_list_masks(section, scores.array.shape)}
    weights = dict(WEIGHTS)
    if scores.array.shape[1] == 1:
        weights["softmax over a single element"] = weights.pop("softmax over the sums")
    if count < len(scores.array):
        del weights["softmax over the examples"]
    for (mask_name, mask), scale, activation in product(masks.items(), scores.scales, scores.activations):
        activated = ACTIVATIONS[activation](scale * scores.array[:count])
        for name, compute in weights.items():
            is_softmax = name.startswith("softmax")
            masked = np.where(mask[:count], activated, -np.inf) if is_softmax else activated
            computed = compute(masked) if is_softmax else compute(masked) * mask[:count]
            if np.isfinite(computed).all():
                choices = {"mask": mask_name, "scale": f"{scale:.6g}", "scores": activation, "weights": name}
                yield Weighting(choices, computed)


def _list_masks(section: CodeSection, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return masks [n, 1, rows] and [n, sums, rows] of the batch, and their inverses, by name."""
    masks = {name: mask[:, None] for name, mask in section.masks.items() if mask.shape == (shape[0], shape[2])}
    masks |= {
        name: array for name, array in section.batch.items() if array.shape == shape and set(np.unique(array)) <= {0, 1}
    }
    return {
        name: values
        for title, mask in masks.items()
        for name, values in (
            (f"the mask {title}", mask.astype(bool)),
            (f"the inverse of the mask {title}", ~mask.astype(bool)),
        )
    }


def _find_pair(
    weightings: Sequence[Weighting], rows: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[Weighting, Weighting] | None:
    """Return the weights of A's and B's weighted sum of the rows; None for other arrays or equal weights.

    If both sides add the same array, only the difference of their sums is known. The first sums reject most weights.
    """
    count = len(weightings[0].array)
    rows, a, b = (array[:count] for array in (rows, a, b))
    first_sums = np.stack([weighting.array[:, :FIRST_SUMS] for weighting in weightings]) @ rows
    first_a, first_b = (array[:, :FIRST_SUMS] for array in (a, b))
    pairs = [
        (weightings[index_a], weightings[index_b])
        for index_a, sum_a in enumerate(first_sums)
        for index_b in _find_close(first_sums, sum_a + first_b - first_a, first_b - first_a)
    ]
    for pair in sorted(pairs, key=_count_differing_choices):
        if is_close((pair[1].array - pair[0].array) @ rows, b - a):
            return pair
    for function in (ACTIVATIONS[name] for name in FINAL_ACTIVATIONS):
        activated = function(first_sums)
        chosen_a, chosen_b = (
            next((weightings[index] for index in _find_close(activated, first, first)), None)
            for first in (first_a, first_b)
        )
        if chosen_a is None or chosen_b is None or chosen_a is chosen_b:
            continue
        if is_close(function(chosen_a.array @ rows), a) and is_close(function(chosen_b.array @ rows), b):
            return chosen_a, chosen_b
    return None


def _find_close(candidates: np.ndarray, wanted: np.ndarray, reference: np.ndarray) -> list[int]:
    """Return the indices of the candidates that equal the wanted array, up to rounding relative to a reference."""
    gaps = np.sqrt(np.square(candidates - wanted).sum(tuple(range(1, candidates.ndim))))
    return (gaps <= SAMPLE_TOLERANCE * np.linalg.norm(reference)).nonzero()[0].tolist()


def _count_differing_choices(pair: tuple[Weighting, Weighting]) -> int:
    return sum(pair[0].choices[name] != pair[1].choices[name] for name in CAUSES)


def _describe(place: str, weights_a: Weighting, weights_b: Weighting) -> Explanation:
    aspect = next(name for name in CAUSES if weights_a.choices[name] != weights_b.choices[name])
    in_a, in_b = weights_a.choices[aspect], weights_b.choices[aspect]
    has_two_axes = in_a.startswith("softmax") and in_b.startswith("softmax")
    names = {"scale": "scores with the factor ", "scores": "scores with "}
    described_a, described_b = (f"{names.get(aspect, '')}{choice}" for choice in (in_a, in_b))
    cause = "softmax_axis" if has_two_axes else CAUSES[aspect]
    return Explanation(cause, f"{place}, has {described_a} in A and {described_b} in B")


def _join_places(array: np.ndarray) -> np.ndarray:
    """Flatten an array [n, height, width, features] to [n, pixels, features]. Return other arrays unchanged."""
    return array.reshape(len(array), -1, array.shape[-1]) if array.ndim > 3 else array
