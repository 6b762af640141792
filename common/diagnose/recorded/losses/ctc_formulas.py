"""Losses of connectionist temporal classification (CTC): of a sequence of labels for a longer sequence of outputs."""

from collections.abc import Iterator, Mapping

import numpy as np
from scipy.special import log_softmax

OUTPUT_LENGTHS = "input_lengths"  # the arrays of lengths that PyTorch's loss function receives
LABEL_LENGTHS = "target_lengths"
NOTHING = -np.inf  # logarithm of the probability 0


def list_ctc_formulas(
    outputs: np.ndarray, labels: np.ndarray, lengths: Mapping[str, np.ndarray], blank: int
) -> Iterator[tuple[str, float]]:
    """Yield the names and values of the reductions of all variants of the loss, the usual one first.

    Args:
        outputs: Logits [n, time, classes].
        labels: Classes [n, labels], with the blank as padding if there are no lengths.
        lengths: The numbers of outputs, at least 1, and of labels of each example, if the loss function received them.
        blank: The class of the blank.
    """
    counts = lengths.get(LABEL_LENGTHS, (labels != blank).sum(1))
    steps = lengths.get(OUTPUT_LENGTHS, np.full(len(outputs), outputs.shape[1]))
    is_cut = "" if (steps == outputs.shape[1]).all() else f" of the first {steps.min()} to {steps.max()} time steps"
    named = f" with the blank {blank}" if blank else ""
    for words, logarithms in (("", log_softmax(outputs, -1)), (" of outputs without log_softmax", outputs)):
        losses = _compute_losses(logarithms, labels, steps, counts, blank)
        name = f"ctc{words}{named}{is_cut}"
        yield f"{name}, mean", float(losses.mean())
        yield f"{name}, sum", float(losses.sum())
        yield f"{name}, mean of losses divided by the numbers of labels", float((losses / np.maximum(counts, 1)).mean())


def _compute_losses(
    logarithms: np.ndarray, labels: np.ndarray, steps: np.ndarray, counts: np.ndarray, blank: int
) -> np.ndarray:
    """Return the negative logarithm of the probability of all paths that spell the labels of an example, [n].

    Args:
        logarithms: Logarithms of probabilities [n, time, classes].
        labels: Classes [n, labels].
        steps: The number of time steps of each example [n].
        counts: The number of labels of each example [n].
        blank: The class of the blank.

    Source: Graves et al., Connectionist Temporal Classification, ICML 2006, section 4.1.
    """
    examples = np.arange(len(labels))
    states = np.full((len(labels), 2 * labels.shape[1] + 1), blank)
    states[:, 1::2] = labels
    may_skip = np.zeros(states.shape, bool)  # the blank between two different labels
    may_skip[:, 3::2] = states[:, 3::2] != states[:, 1:-2:2]
    forward = np.full(states.shape, NOTHING)
    forward[:, :2] = logarithms[examples[:, None], 0, states[:, :2]]
    for step in range(1, logarithms.shape[1]):
        before, skipped = (np.pad(forward, ((0, 0), (n, 0)), constant_values=NOTHING)[:, :-n] for n in (1, 2))
        reached = np.logaddexp(np.logaddexp(forward, before), np.where(may_skip, skipped, NOTHING))
        reached += logarithms[examples[:, None], step, states]
        forward = np.where((step < steps)[:, None], reached, forward)
    ends_with_label = np.where(counts > 0, forward[examples, 2 * counts - 1], NOTHING)
    losses: np.ndarray = -np.logaddexp(forward[examples, 2 * counts], ends_with_label)
    return losses
