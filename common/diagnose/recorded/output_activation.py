"""The activation of the outputs, which may be a part of the model or of the loss function.

A Keras model may end in softmax, and its loss then takes probabilities; PyTorch's cross entropy takes the logits. The
form of an output is a pair: whether it is of several classes or binary, and whether it holds logits, probabilities or
log-probabilities.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax

from common.diagnose.recorded.loss_settings import SEVERAL
from common.diagnose.recorded.recorded_side import RecordedSide
from common.map.array_differences import relative_difference

CLASSES, BINARY = "classes", "binary"
LOGITS, PROBABILITIES, LOG_PROBABILITIES = "logits", "probabilities", "log-probabilities"
TORCH_FORMS = {  # the form that a loss function of PyTorch takes
    "cross_entropy": (CLASSES, LOGITS),
    "nll_loss": (CLASSES, LOG_PROBABILITIES),
    "binary_cross_entropy_with_logits": (BINARY, LOGITS),
    "binary_cross_entropy": (BINARY, PROBABILITIES),
}
SUM_TOLERANCE = 1e-2  # probabilities in bfloat16 may differ from a sum of 1 by this
ACTIVATIONS: dict[tuple[str, str], Callable[[np.ndarray], np.ndarray]] = {
    (CLASSES, PROBABILITIES): lambda logits: softmax(logits, -1),
    (CLASSES, LOG_PROBABILITIES): lambda logits: log_softmax(logits, -1),
    (BINARY, PROBABILITIES): expit,
}


def align_outputs(a: RecordedSide, b: RecordedSide, outputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return the outputs of A and B in the same form, if the two losses take different forms.

    Logits are converted to the form of the other side, and log-probabilities to probabilities. Outputs that cannot be
    converted are returned unchanged.

    Args:
        a: Side A.
        b: Side B.
        outputs: Outputs of the models of A and B [n, ..., classes].
    """
    candidates = [outputs]
    for forms in product(find_forms(a), find_forms(b)):
        for index, (form, other) in enumerate((forms, forms[::-1])):
            if form[0] != other[0] or form[1] == other[1] or not _are_in_form(outputs[1 - index], other):
                continue  # if the outputs do not have the form, the script itself converts them
            if form[1] == LOGITS or (form[1] == LOG_PROBABILITIES and _are_in_form(outputs[index], form)):
                activation = np.exp if form[1] == LOG_PROBABILITIES else ACTIVATIONS[other]
                aligned = list(outputs)
                aligned[index] = activation(outputs[index])
                candidates.append(tuple(aligned))
    has_several = any(side.record.facts["loss"] is not None and len(find_forms(side)) != 1 for side in (a, b))
    if has_several:  # it is not known which output each of them takes
        return min(candidates, key=lambda pair: relative_difference(pair[0], pair[1]))
    return candidates[-1]


def _are_in_form(outputs: np.ndarray, form: tuple[str, str]) -> bool:
    """Check whether outputs have the values of a form that holds probabilities: from 0 to 1, with a sum of 1."""
    values = np.exp(outputs) if form[1] == LOG_PROBABILITIES else outputs
    if form[0] == CLASSES and not np.allclose(values.sum(-1), 1, atol=SUM_TOLERANCE):
        return False
    return bool(((values >= 0) & (values <= 1 + SUM_TOLERANCE)).all())


def find_forms(side: RecordedSide) -> list[tuple[str, str]]:
    """Return the forms of the outputs that a side's losses take, of each loss whose form is known."""
    loss = side.record.facts["loss"]
    losses = [] if loss is None else [*loss["arguments"].values()] if loss["name"] == SEVERAL else [loss]
    described = [entry for entry in losses if _is_description(entry)]  # a record may have anything
    return [form for entry in described if (form := _find_form(entry, side.is_torch)) is not None]


def _is_description(entry: object) -> bool:
    """Check whether a value of a record describes a loss by its name and its arguments."""
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("arguments"), dict)


def _find_form(loss: Any, is_torch: bool) -> tuple[str, str] | None:  # noqa: ANN401  of one loss among several
    if is_torch:
        return TORCH_FORMS.get(loss["name"])
    name = loss["name"].rpartition(".")[2].lower().replace("_", "")
    kind = {"categoricalcrossentropy": CLASSES, "binarycrossentropy": BINARY}.get(name.removeprefix("sparse"))
    is_known = kind is not None and isinstance(loss["arguments"].get("from_logits"), bool)
    return (str(kind), LOGITS if loss["arguments"]["from_logits"] else PROBABILITIES) if is_known else None
