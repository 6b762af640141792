"""Variables that are sums of different numbers of variables in A and in B, such as the two biases of PyTorch's LSTM.

A is the reference record of a diagnosis, and B the record that is compared with it. Every term of a sum moves, so that
a sum of more variables moves farther. A norm of all gradients counts each of them: clipping by it then moves all
variables by one more factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.diagnose.explain.moving_statistics import FirstStep, is_moving_statistic
from common.diagnose.recorded.variable_match import VariableMatch

ADDED_SHARE = 1e-2  # largest relative difference between two moves, or a move and the move that another implies


@dataclass(frozen=True)
class AddedVariables:
    """Variables that are sums of different numbers of variables.

    Attributes:
        sentences: A sentence about each of them, by title.
        moves_all: Whether all other variables move by another factor in B, because clipping counts the terms.
    """

    sentences: dict[str, str]
    moves_all: bool


def find_added_variables(variables: Sequence[VariableMatch], first_steps: Sequence[FirstStep]) -> AddedVariables:
    """Find the variables that are sums of different numbers of variables, and move as far as that explains."""
    by_title, sentences = {first.name: first for first in first_steps}, {}
    factors = {match.title: len(match.names_b) / len(match.names_a) for match in variables}
    common_factor = _find_common_factor([first for title, first in by_title.items() if factors.get(title) == 1])
    clipping, moves_all = "", abs(common_factor - 1) > ADDED_SHARE
    if moves_all:
        clipping = ", and a norm by which the gradients are clipped counts each of them, so that all variables move "
        clipping += f"{common_factor:.3g} times as far"
    for match in variables:
        factor, first = factors[match.title], by_title.get(match.title)
        if factor == 1 or first is None or not (expected := (first.a - first.start) * factor * common_factor).any():
            continue
        if _are_close(first.b - first.start, expected):
            sentences[match.title] = (
                f"{match.title} is the sum of {len(match.names_a)} in A and of {len(match.names_b)} in B, each of "
                f"which moves, so that it moves {factor:g} times as far in B{clipping}"
            )
    return AddedVariables(sentences, moves_all)


def _find_common_factor(first_steps: Sequence[FirstStep]) -> float:
    """Return how many times as far all trained variables move in B; 1 if there is no such factor."""
    moves = [
        (first.a - first.start, first.b - first.start) for first in first_steps if not is_moving_statistic(first.name)
    ]
    size = sum(float(np.square(a).sum()) for a, _ in moves)
    factor = sum(float((a * b).sum()) for a, b in moves) / size if size else 1.0
    return factor if all(_are_close(b, a * factor) for a, b in moves) else 1.0


def _are_close(move: np.ndarray, expected: np.ndarray) -> bool:
    """Check whether a variable moves as expected. Small moves of large weights are rounded."""
    return np.allclose(move, expected, rtol=ADDED_SHARE, atol=ADDED_SHARE * np.abs(expected).max(initial=0))
