"""The activation of the outputs, which may be a part of the model or of the loss function.

A Keras model may end in softmax, and its loss then takes probabilities; PyTorch's cross entropy takes the logits.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import expit, log_softmax, softmax

from common.diagnose.recorded.recorded_side import RecordedSide

CLASSES, BINARY = "classes", "binary"
LOGITS, PROBABILITIES, LOG_PROBABILITIES = "logits", "probabilities", "log-probabilities"
OF_TORCH = {
    "cross_entropy": (CLASSES, LOGITS),
    "nll_loss": (CLASSES, LOG_PROBABILITIES),
    "binary_cross_entropy_with_logits": (BINARY, LOGITS),
    "binary_cross_entropy": (BINARY, PROBABILITIES),
}
SUM_TOLERANCE = 1e-2  # of probabilities in bfloat16
ACTIVATIONS: dict[tuple[str, str], Callable[[np.ndarray], np.ndarray]] = {
    (CLASSES, PROBABILITIES): lambda logits: softmax(logits, -1),
    (CLASSES, LOG_PROBABILITIES): lambda logits: log_softmax(logits, -1),
    (BINARY, PROBABILITIES): expit,
}


def align_outputs(a: RecordedSide, b: RecordedSide, outputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return the outputs of A and B as one of the losses takes them, if the other one takes another form of the same.

    One takes the logits, or one takes probabilities and the other one their logarithms.

    Args:
        a: Side A.
        b: Side B.
        outputs: Outputs of the models of A and B [n, ..., classes].
    """
    forms = [find_form(side) for side in (a, b)]
    for index, (form, other) in enumerate((forms, forms[::-1])):
        if form is None or other is None or form[0] != other[0] or not form[1] == LOGITS != other[1]:
            continue
        if _are_in_form(outputs[1 - index], other):  # otherwise the script itself computes it
            aligned = list(outputs)
            aligned[index] = ACTIVATIONS[other](outputs[index])
            return tuple(aligned)
    if {*forms} == {(CLASSES, PROBABILITIES), (CLASSES, LOG_PROBABILITIES)}:
        pairs = zip(outputs, forms, strict=True)
        if all(_are_in_form(array, form) for array, form in pairs if form is not None):
            is_log = [form is not None and form[1] == LOG_PROBABILITIES for form in forms]
            return tuple(np.exp(array) if log else array for array, log in zip(outputs, is_log, strict=True))
    return outputs


def _are_in_form(outputs: np.ndarray, form: tuple[str, str]) -> bool:
    """Check whether outputs can be what a loss takes."""
    values = np.exp(outputs) if form[1] == LOG_PROBABILITIES else outputs
    if form[0] == CLASSES and not np.allclose(values.sum(-1), 1, atol=SUM_TOLERANCE):
        return False
    return bool(((values >= 0) & (values <= 1 + SUM_TOLERANCE)).all())


def find_form(side: RecordedSide) -> tuple[str, str] | None:
    """Return what a side's loss takes: of classes or of two, as logits, probabilities, ...; None if it is unknown."""
    loss = side.record.facts["loss"]
    if loss is None or side.is_torch:
        return OF_TORCH.get(loss["name"]) if loss is not None else None
    name = loss["name"].rpartition(".")[2].lower().replace("_", "")
    kind = {"categoricalcrossentropy": CLASSES, "binarycrossentropy": BINARY}.get(name.removeprefix("sparse"))
    is_known = kind is not None and isinstance(loss["arguments"].get("from_logits"), bool)
    return (str(kind), LOGITS if loss["arguments"]["from_logits"] else PROBABILITIES) if is_known else None
