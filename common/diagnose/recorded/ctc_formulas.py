"""Losses of connectionist temporal classification (CTC): of a sequence of labels for a longer sequence of outputs."""

from collections.abc import Iterator, Mapping

import numpy as np
from scipy.special import log_softmax, logsumexp

LESS_OUTPUTS = "input_lengths"  # the arrays of lengths that PyTorch's loss function receives
LABEL_COUNTS = "target_lengths"
NOTHING = -np.inf  # logarithm of the probability 0


def list_ctc_formulas(
    outputs: np.ndarray, labels: np.ndarray, lengths: Mapping[str, np.ndarray], blank: int
) -> Iterator[tuple[str, float]]:
    """Yield the names and values of the reductions of all variants of the loss, the usual one first.

    Args:
        outputs: Logits [n, time, classes].
        labels: Classes [n, labels], with the blank as padding if there are no lengths.
        lengths: The numbers of outputs and of labels of each example, if the loss function received them.
        blank: The class of the blank.
    """
    counts = lengths.get(LABEL_COUNTS, (labels != blank).sum(1))
    steps = lengths.get(LESS_OUTPUTS, np.full(len(outputs), outputs.shape[1]))
    is_cut = "" if (steps == outputs.shape[1]).all() else f" of the first {steps.min()} to {steps.max()} time steps"
    named = f" with the blank {blank}" if blank else ""
    for words, logarithms in (("", log_softmax(outputs, -1)), (" of outputs without log_softmax", outputs)):
        losses = np.array(
            [_compute_loss(x[:t], y[:n], blank) for x, y, t, n in zip(logarithms, labels, steps, counts, strict=True)]
        )
        name = f"ctc{words}{named}{is_cut}"
        yield f"{name}, mean", float(losses.mean())
        yield f"{name}, sum", float(losses.sum())
        yield f"{name}, mean of losses divided by the numbers of labels", float((losses / np.maximum(counts, 1)).mean())


def _compute_loss(logarithms: np.ndarray, labels: np.ndarray, blank: int) -> float:
    """Return the negative logarithm of the probability of all paths that spell the labels.

    Args:
        logarithms: Logarithms of probabilities [time, classes].
        labels: Classes [labels].
        blank: The class of the blank.

    Source: Graves et al., Connectionist Temporal Classification, ICML 2006, section 4.1.
    """
    states = np.full(2 * len(labels) + 1, blank)
    states[1::2] = labels
    may_skip = np.zeros(len(states), bool)  # the blank between two different labels
    may_skip[3::2] = states[3::2] != states[1:-2:2]
    forward = np.full(len(states), NOTHING)
    forward[:2] = logarithms[0, states[:2]]
    for row in logarithms[1:]:
        before = np.concatenate([[NOTHING], forward[:-1]])
        skipped = np.where(may_skip, np.concatenate([[NOTHING, NOTHING], forward[:-2]]), NOTHING)
        forward = logsumexp([forward, before, skipped], axis=0) + row[states]
    return float(-logsumexp(forward[-2:]))
