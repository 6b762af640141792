"""The stage of the loss: of each example, from the same outputs."""

from collections.abc import Mapping

import numpy as np
from scipy.special import log_softmax, softmax

from common.diagnose.findings import Check, Stage
from common.diagnose.observation import Observation
from common.diagnose.rounding import EXACT, at_least_float32, close, noise
from common.map.proof import SMALL

SMOOTHING = (0.0, 0.05, 0.1, 0.15, 0.2)


def compare_losses(
    a: Observation,
    b: Observation,
    disturbed: Observation,
    labels: np.ndarray,
    theirs: np.ndarray,
    precision: str = "float64",
    alone: Observation | None = None,
) -> Stage:
    """B's losses of its own outputs, and of A's, which are `theirs`. In bfloat16 losses are float32.

    alone: A with its own arrays, disturbed by rounding, at every layer; without it `disturbed` says what noise is.
    """
    stage = Stage("loss", precision=precision)
    outputs, ours = a.outputs[0], a.losses[0]
    own, whole = (noise(ours, each.losses[0]) for each in (alone or disturbed, disturbed))
    if ours.shape != theirs.shape:
        stage.checks.append(Check("losses", np.inf))
        words = f"the losses have the shape {list(theirs.shape)} in B and {list(ours.shape)} in A; they must be [n]"
        stage.blame("broadcast_in_loss", "b", "losses", words)
        return stage
    if stage.compare("losses of A's outputs", ours, theirs, own, precision=at_least_float32(precision)).differs:
        _explain(stage, outputs, labels, ours, theirs)
    elif b.losses[0].shape == ours.shape:
        stage.compare("losses (whole model)", ours, b.losses[0], whole, culprit=False)
    return stage


def _explain(stage: Stage, outputs: np.ndarray, labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    found = _formulas(outputs, labels)
    ours = next((name for name, each in found.items() if close(each, a)), None)
    theirs = next((name for name, each in found.items() if close(each, b)), None)
    if ours and theirs:
        cause = theirs if theirs.split(" ")[0] != ours.split(" ")[0] else "label smoothing"
        slug = "broadcast_in_loss" if "broadcast" in cause else cause.split(" of ")[0].replace(" ", "_")
        stage.blame(slug, "b", "losses", f"the loss of A is {ours}, that of B {theirs}")
        return
    ratio = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
    if ratio and close(a * ratio, b):
        stage.blame("scaled_loss", "b", "losses", f"the losses of B are {ratio:.6g} times A's")
    elif b.size and close(b, np.full_like(b, a.mean())):
        stage.blame("mean_instead_of_losses", "b", "losses", "B returns the mean loss in place of each example's loss")
    elif (~np.isfinite(a) != ~np.isfinite(b)).any():
        side = "b" if np.isfinite(a[~np.isfinite(b)]).any() else "a"
        words = f"given the same outputs, losses of {side.upper()} are not finite where the other side's are"
        stage.blame("not_finite", side, "losses", words)
    else:
        words = "given the same outputs, the losses of B are others: compare the two loss functions"
        stage.blame("loss_function", "b", "losses", words, confirmed=False)


def _formulas(outputs: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Losses by what a loss function may compute."""
    found: dict[str, np.ndarray] = {}
    n = len(outputs)
    if outputs.ndim == 2 and labels.ndim == 1 and labels.dtype.kind in "iu":
        target = np.eye(outputs.shape[1])[labels]
        for smoothing in SMOOTHING:
            soft = target * (1 - smoothing) + smoothing / outputs.shape[1]
            name = f"cross entropy with label smoothing of {smoothing:g}" if smoothing else "cross entropy"
            found[name] = -(soft * log_softmax(outputs, 1)).sum(1)
        found["double softmax of probabilities"] = -(target * log_softmax(softmax(outputs, 1), 1)).sum(1)
    rows, wanted = outputs.reshape(n, -1), np.asarray(labels, np.float64).reshape(n, -1)
    if rows.shape == wanted.shape:
        off = rows - wanted
        cross = (rows[:, :1] - wanted[:, :1].T) if wanted.shape[1] == 1 else None
        found |= {
            "squared error": (off**2).mean(1),
            "half the squared error": (off**2).mean(1) / 2,
            "absolute error": np.abs(off).mean(1),
            "squared error summed over outputs": (off**2).sum(1),
            "huber loss": np.where(np.abs(off) < 1, off**2 / 2, np.abs(off) - 0.5).mean(1),
            "binary cross entropy": (np.logaddexp(0, rows) - rows * wanted).mean(1),
        }
        if cross is not None:
            found["broadcast of [n, 1] against [n]: squared error"] = (cross**2).mean(1)
            found["broadcast of [n] against [n, 1]: squared error"] = (cross**2).mean(0)
            found["broadcast of [n, 1] against [n]: absolute error"] = np.abs(cross).mean(1)
    return found


def compare_gradients(
    a: Observation,
    b: Observation,
    disturbed: Observation,
    inherited: bool,
    untied: Mapping[str, str],
    precision: str = "float64",
) -> Stage:
    """Of the loss by each parameter, from the same weights.

    inherited: whether the forward pass differs. untied: parameters that are tied to another on one side, by that one.
    """
    stage = Stage("gradients", precision=precision)
    largest = max((float(np.linalg.norm(each)) for each in a.gradients.values()), default=0.0)
    for name, twin in untied.items():
        if twin in a.gradients and twin in b.gradients:
            _compare_tied(stage, name, twin, a.gradients, b.gradients)
    for name in sorted((a.gradients.keys() ^ b.gradients.keys()) - untied.keys()):
        where, lacks = ("A", "b") if name in a.gradients else ("B", "a")
        stage.checks.append(Check(name, np.inf))
        stage.blame("not_trained", lacks, name, f"{name} is trained in {where} only: the other side has it frozen")
    for name in [each for each in a.gradients if each in b.gradients and each not in untied.values()]:
        x, y = a.gradients[name], b.gradients[name]
        own = noise(x, disturbed.gradients[name], least=SMALL * largest)
        if stage.compare(name, x, y, own, not inherited, SMALL * largest).differs and not inherited:
            cause, words = _explain_gradient(x, y, EXACT[precision])
            stage.blame(cause, "b", name, f"{name}: {words}", confirmed=cause != "gradient")
    _merge(stage)
    return stage


def _compare_tied(stage: Stage, name: str, twin: str, a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> None:
    """One parameter on one side, `twin`, and two with the same values on the other: `twin` and `name`."""
    stage.compare(twin, a[twin], b[twin])
    (tied, one), (apart, two) = sorted({"A": a, "B": b}.items(), key=lambda each: name in each[1])
    words = f"{name} is tied to {twin} in {tied} only: {tied} has one parameter where {apart} trains two"
    second = two.get(name, np.zeros_like(two[twin]))
    explained = close(two[twin] + (second if second.shape == two[twin].shape else second.T), one[twin])
    if explained:
        words += f", and its gradient is the sum of {apart}'s two"
    stage.blame("tied_on_one_side", "b", name, words, confirmed=explained)


def _explain_gradient(a: np.ndarray, b: np.ndarray, exact: float) -> tuple[str, str]:
    if not b.any():
        return "no_gradient", "its gradient is zero in B: frozen, or cut off from the loss"
    if not a.any():
        return "no_gradient", "its gradient is zero in A: frozen, or cut off from the loss"
    if (np.isfinite(a) != np.isfinite(b)).any():
        return "not_finite", f"its gradient is finite in {'A' if np.isfinite(a).all() else 'B'} only"
    factor = float((a * b).sum() / (a * a).sum())
    if factor and close(a * factor, b, exact):
        return "scaled_gradient", f"its gradient in B is {factor:.6g} times A's, and the loss is the same"
    rows = [each for each in range(len(a)) if np.linalg.norm(a[each] - b[each]) > exact * np.linalg.norm(a)]
    if a.ndim == 2 and len(rows) == 1:
        zero = "A" if not a[rows[0]].any() else "B" if not b[rows[0]].any() else None
        if zero:
            return "padding_row", f"row {rows[0]} gets no gradient in {zero}, as with padding_idx"
    if a.shape == b.T.shape and close(a.T, b, exact):
        return "transposed_gradient", "its gradient in B is A's transposed"
    return "gradient", "its gradient differs though the loss is the same"


def _merge(stage: Stage) -> None:
    """One cause for all parameters whose gradients are scaled alike."""
    scaled = [each for each in stage.causes if each.cause == "scaled_gradient"]
    if len(scaled) > 1:
        words = scaled[0].sentence.partition(": ")[2].replace("its gradient", "every gradient")
        kept = [each for each in stage.causes if each.cause != "scaled_gradient"]
        stage.causes[:] = kept
        stage.blame("scaled_gradient", "b", f"{len(scaled)} parameters", words)
