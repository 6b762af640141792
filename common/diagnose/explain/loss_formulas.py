"""Formulas that a loss function may compute, and what distinguishes the losses of runs A and B.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

import numpy as np
from scipy.special import expit, log_softmax, softmax

from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

SMOOTHING_FACTORS = (0.0, 0.05, 0.1, 0.15, 0.2)
KERAS_EPSILON = 1e-7  # Keras clips probabilities to at least this, and to at most 1 minus this
BINARY = "binary cross entropy"
DOUBLE_SIGMOID = "binary cross entropy of probabilities taken as logits"
NOT_FROM_LOGITS = "cross entropy of logits taken as probabilities"  # also a part of the name of the binary one
MOST_ELEMENTS = 2**22  # size of the outputs above which only the examples that differ most are explained
MOST_PAIRS = 2**24  # largest number of losses, each of an output and a target, in a broadcast; more take gigabytes


def explain_losses(outputs: np.ndarray, labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> Explanation:
    """Explain why two loss functions return different losses for the same outputs.

    Args:
        outputs: Outputs [n, ...] of the model.
        labels: Labels [n, ...].
        a: Losses [n] that A's loss function computes.
        b: Losses [n] that B's loss function computes.
    """
    count = max(2, MOST_ELEMENTS * len(outputs) // max(outputs.size, 1))
    chosen = slice(None) if count >= len(outputs) else np.argsort(np.abs(a - b))[-count:]
    formulas = compute_formulas(outputs[chosen], labels[chosen])
    formula_a, formula_b = (
        next((name for name, computed in formulas.items() if is_close(computed, losses[chosen])), None)
        for losses in (a, b)
    )
    if formula_a and formula_b:
        return Explanation(_name_cause(formula_a, formula_b), f"the loss of A is {formula_a}, that of B {formula_b}")
    factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
    if factor and is_close(a * factor, b):
        return Explanation("scaled_loss", f"the losses of B are {factor:.6g} times A's")
    if b.size and is_close(b, np.full_like(b, a.mean())):
        sentence = "B returns the mean loss in place of each example's loss"
        return Explanation("mean_instead_of_losses", sentence)
    if (~np.isfinite(a) != ~np.isfinite(b)).any():
        side = "b" if np.isfinite(a[~np.isfinite(b)]).any() else "a"
        sentence = f"given the same outputs, losses of {side.upper()} are not finite and the other side's are"
        return Explanation("not_finite", sentence, side=side)
    sentence = "given the same outputs, B returns other losses: compare the two loss functions"
    return Explanation("loss_function", sentence, confirmed=False)


def _name_cause(formula_a: str, formula_b: str) -> str:
    """Return the name of the cause: B's formula, or label smoothing if both are cross entropies."""
    are_cross_entropies = all(formula.startswith("cross entropy") for formula in (formula_a, formula_b))
    difference = "label smoothing" if are_cross_entropies else formula_b
    return "broadcast_in_loss" if "broadcast" in difference else difference.split(" of ")[0].replace(" ", "_")


def compute_formulas(outputs: np.ndarray, labels: np.ndarray, are_logits: bool = False) -> dict[str, np.ndarray]:
    """Return the losses [n] of every formula that fits the shapes, by the formula's name in reports.

    Args:
        outputs: Outputs [n, ...] of the model.
        labels: Labels [n, ...].
        are_logits: Whether the outputs are known to be no probabilities. Else those from 0 to 1 count as probabilities.
    """
    losses: dict[str, np.ndarray] = {}
    if outputs.ndim == 2 and labels.ndim == 1 and labels.dtype.kind in "iu":
        losses |= _compute_cross_entropies(outputs, labels)
    rows, targets = outputs.reshape(len(outputs), -1), np.asarray(labels, np.float64).reshape(len(outputs), -1)
    if rows.shape == targets.shape:
        losses |= _compute_regression_losses(rows, targets, are_logits)
    return losses


def _compute_cross_entropies(logits: np.ndarray, classes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the losses [n] of logits [n, classes] for the classes [n] of the examples."""
    target, log_probabilities = encode_one_hot(classes, logits.shape[1]), log_softmax(logits, 1)
    of_target, mean, losses = (target * log_probabilities).sum(1), log_probabilities.mean(1), {}
    for smoothing in SMOOTHING_FACTORS:
        name = f"cross entropy with label smoothing of {smoothing:g}" if smoothing else "cross entropy"
        losses[name] = -((1 - smoothing) * of_target + smoothing * mean)
    losses["double softmax of probabilities"] = -(target * log_softmax(softmax(logits, 1), 1)).sum(1)
    return losses


def encode_one_hot(classes: np.ndarray, count: int) -> np.ndarray:
    """Return classes [n, ...] as rows [n, ..., count] with a 1 at the class. The row of any other number has zeros."""
    return (classes[..., None] == np.arange(count)).astype(np.float64)


def _compute_binary_cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the losses [n] of logits [n, values] for targets [n, values]."""
    losses: np.ndarray = (np.logaddexp(0, logits) - logits * targets).mean(1)
    return losses


def _compute_regression_losses(outputs: np.ndarray, targets: np.ndarray, are_logits: bool) -> dict[str, np.ndarray]:
    """Return the losses [n] of outputs [n, values] for targets [n, values]."""
    error = outputs - targets
    squares = error**2
    losses = {
        "squared error": squares.mean(1),
        "half the squared error": squares.mean(1) / 2,
        "absolute error": np.abs(error).mean(1),
        "squared error summed over outputs": squares.sum(1),
        "huber loss": np.where(squares < 1, squares / 2, np.abs(error) - 0.5).mean(1),
        "absolute percentage error": 100 * np.abs(error / np.maximum(np.abs(targets), KERAS_EPSILON)).mean(1),
        "absolute percentage error of the output": 100
        * np.abs(error / np.maximum(np.abs(outputs), KERAS_EPSILON)).mean(1),
        "log cosh error": (np.logaddexp(error, -error) - np.log(2)).mean(1),
        BINARY: _compute_binary_cross_entropy(outputs, targets),
    }
    if targets.min() >= 0:
        logarithms = np.log1p(np.maximum(outputs, KERAS_EPSILON)) - np.log1p(np.maximum(targets, KERAS_EPSILON))
        losses["squared logarithmic error"] = (logarithms**2).mean(1)
    clipped = np.clip(outputs, KERAS_EPSILON, 1 - KERAS_EPSILON)
    of_clipped = -(targets * np.log(clipped) + (1 - targets) * np.log1p(-clipped)).mean(1)
    are_shares = targets.min() >= 0 and targets.max() <= 1
    if not are_logits and are_shares and outputs.min() >= 0 and outputs.max() <= 1:
        losses[DOUBLE_SIGMOID] = losses.pop(BINARY)
        losses[BINARY] = of_clipped
    else:
        if are_shares:
            losses[f"binary {NOT_FROM_LOGITS}"] = of_clipped
        losses[DOUBLE_SIGMOID] = _compute_binary_cross_entropy(expit(outputs), targets)
    if targets.shape[1] == 1 and targets.size**2 <= MOST_PAIRS:
        all_pairs = outputs - targets.T  # [n, n]: every output against every target
        losses["broadcast of [n, 1] against [n]: squared error"] = (all_pairs**2).mean(1)
        losses["broadcast of [n] against [n, 1]: squared error"] = (all_pairs**2).mean(0)
        losses["broadcast of [n, 1] against [n]: absolute error"] = np.abs(all_pairs).mean(1)
    return losses
