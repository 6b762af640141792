"""The activation of the outputs, which may be a part of the model or of the loss function.

A Keras model may end in softmax, and its loss then takes probabilities; PyTorch's cross entropy takes the logits. The
form of an output is a pair: whether it is of several classes or binary, and whether it holds logits, probabilities or
log-probabilities.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax

from common.diagnose.recorded.losses.loss_settings import SEVERAL
from common.diagnose.recorded.operations.operation_names import KEEPING, PRODUCTS, normalize_name
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.rounding import is_close
from common.map.array_differences import relative_difference

CLASSES, BINARY = "classes", "binary"
LOGITS, PROBABILITIES, LOG_PROBABILITIES = "logits", "probabilities", "log-probabilities"
TORCH_FORMS = {  # the form that a loss function of PyTorch takes
    "cross_entropy": (CLASSES, LOGITS),
    "nll_loss": (CLASSES, LOG_PROBABILITIES),
    "kl_div": (CLASSES, LOG_PROBABILITIES),
    "binary_cross_entropy_with_logits": (BINARY, LOGITS),
    "binary_cross_entropy": (BINARY, PROBABILITIES),
}
APPLIED = {  # the kind of output that a function takes, which scripts call between the model and the loss
    "softmax": CLASSES, "log_softmax": CLASSES, "Softmax": CLASSES, "LogSoftmax": CLASSES, "sigmoid": BINARY,
    "logsigmoid": BINARY, "Sigmoid": BINARY, "LogSigmoid": BINARY, "SoftmaxCrossEntropyWithLogits": CLASSES,
    "SparseSoftmaxCrossEntropyWithLogits": CLASSES,
}  # fmt: skip
EQUAL = 1e-4  # largest relative error of outputs that count as equal here
SUM_TOLERANCE = 1e-2  # probabilities in bfloat16 may differ from a sum of 1 by this
ACTIVATIONS: dict[tuple[str, str], Callable[[np.ndarray, int], np.ndarray]] = {  # with the axis of the classes
    (CLASSES, PROBABILITIES): softmax,
    (CLASSES, LOG_PROBABILITIES): log_softmax,
    (BINARY, PROBABILITIES): lambda logits, axis: expit(logits),
}


def align_outputs(a: RecordedSide, b: RecordedSide, outputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return the outputs of A and B in the same form, if the two losses take different forms.

    Logits are converted to the form of the other side, and log-probabilities to probabilities. Outputs that cannot be
    converted, or that are equal as they are, are returned unchanged: the stage "loss" then finds a loss that takes them
    in another form than they have.

    Args:
        a: Side A.
        b: Side B.
        outputs: Outputs of the models of A and B [n, ..., classes] or [n, classes, ...].
    """
    if is_close(outputs[0], outputs[1], EQUAL):
        return outputs
    if (converted := _convert_logits(a, b, outputs)) is not None:
        return converted
    candidates = [outputs]
    for forms in product(find_forms(a), find_forms(b)):
        for index, (form, other) in enumerate((forms, forms[::-1])):
            if form[0] != other[0] or form[1] == other[1] or not _are_in_form(outputs[1 - index], other):
                continue  # if the outputs do not have the form, the script itself converts them
            if form[1] == LOGITS or (form[1] == LOG_PROBABILITIES and _are_in_form(outputs[index], form)):
                aligned = list(outputs)
                if form[1] == LOG_PROBABILITIES:
                    aligned[index] = np.exp(outputs[index])
                else:
                    aligned[index] = ACTIVATIONS[other](outputs[index], _find_class_axis(outputs[1 - index], other))
                candidates.append(tuple(aligned))
    has_several = any(side.record.facts["loss"] is not None and len(find_forms(side)) != 1 for side in (a, b))
    if has_several:  # it is not known which output each of them takes
        return min(candidates, key=lambda pair: relative_difference(pair[0], pair[1]))
    return candidates[-1]


def _convert_logits(a: RecordedSide, b: RecordedSide, outputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...] | None:
    """Return the outputs with one side's logits as probabilities, if they then equal the other side's; else None."""
    for index, side in enumerate((a, b)):
        of_side, of_other = outputs[index], outputs[1 - index]
        if (probabilities := _align_with_logits_of_keras(side, of_side, of_other)) is not None:
            return (of_side, probabilities) if index == 0 else (probabilities, of_side)
        if _are_logarithms(of_side) and is_close(np.exp(of_side), of_other, EQUAL):
            return (np.exp(of_side), of_other) if index == 0 else (of_other, np.exp(of_side))
        probabilities, forms_of_other = None, find_forms((b, a)[index])
        if all(form != LOGITS for _, form in forms_of_other):  # otherwise the other side has it twice
            probabilities = _apply_function_of_loss(side, of_side, of_other)
            if probabilities is None and _list_forms_of_loss(side):  # perhaps losses of two kinds
                probabilities = _convert(of_side, of_other, forms_of_other)
        if probabilities is None:
            probabilities = _apply_function_of_script(side, of_side, of_other)
        if probabilities is not None:
            return (probabilities, of_other) if index == 0 else (of_other, probabilities)
    return None


def _align_with_logits_of_keras(side: RecordedSide, outputs: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Return the other side's logits as probabilities if a Keras model returns equal probabilities; else None.

    If a Keras model ends in softmax or sigmoid, a loss that takes logits computes from the logits before that layer.
    """
    return None if side.is_torch else _convert(other, outputs, _list_forms_of_loss(side))


def _apply_function_of_loss(side: RecordedSide, outputs: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Return a side's logits as probabilities if its loss converts them and the other model has the same; else None.

    What the other side's loss does with its probabilities does not matter: the stage "loss" compares it.
    """
    return _convert(outputs, other, _list_forms_of_loss(side))


def _apply_function_of_script(side: RecordedSide, outputs: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Return a side's logits as probabilities if its script converts them and the other side has these; else None.

    With such a conversion, the loss may have an unknown form.
    """
    trace = side.record.ranks[0].operations
    if trace is None:
        return None
    returned = {number for name, number in trace["names"].items() if name.startswith("batch/0/output/")}
    kinds = {APPLIED.get(x["name"]) for x in trace["operations"] if not x["layer"] and returned & {*x["inputs"][:1]}}
    known_kinds = sorted(kind for kind in kinds if kind is not None)
    return _convert(outputs, other, product(known_kinds, (PROBABILITIES, LOG_PROBABILITIES)))


def _list_forms_of_loss(side: RecordedSide) -> list[tuple[str, str]]:
    """Return the forms to which a side's losses convert the logits that they take."""
    return [(kind, PROBABILITIES) for kind, form in find_forms(side) if form == LOGITS]


def _convert(logits: np.ndarray, target: np.ndarray, forms: Iterable[tuple[str, str]]) -> np.ndarray | None:
    """Return logits in the first form in which they equal the target, which has this form; None if there is none."""
    for form in forms:
        if form in ACTIVATIONS and _are_in_form(target, form):
            converted = ACTIVATIONS[form](logits, _find_class_axis(target, form))
            if is_close(converted, target, EQUAL):
                return converted
    return None


def _are_in_form(outputs: np.ndarray, form: tuple[str, str]) -> bool:
    """Check whether outputs have the values of a form that holds probabilities: from 0 to 1, with a sum of 1."""
    values = np.exp(outputs) if form[1] == LOG_PROBABILITIES else outputs
    if form[0] == CLASSES and not np.allclose(values.sum(_find_class_axis(outputs, form)), 1, atol=SUM_TOLERANCE):
        return False
    return bool(((values >= 0) & (values <= 1 + SUM_TOLERANCE)).all())


def _are_logarithms(outputs: np.ndarray) -> bool:
    """Check whether outputs have the values of logarithms of the probabilities of classes."""
    return bool((outputs <= SUM_TOLERANCE).all()) and _are_in_form(outputs, (CLASSES, LOG_PROBABILITIES))


def _find_class_axis(outputs: np.ndarray, form: tuple[str, str]) -> int:
    """Return the axis in which the probabilities of an example have the sum 1: the second one, or else the last one."""
    values = np.exp(outputs) if form[1] == LOG_PROBABILITIES else outputs
    is_second = outputs.ndim > 2 and np.allclose(values.sum(1), 1, atol=SUM_TOLERANCE)
    return 1 if is_second and not np.allclose(values.sum(-1), 1, atol=SUM_TOLERANCE) else -1


def returns_logits(side: RecordedSide) -> bool:
    """Check whether the first output of a model is the result of a layer with weights, and not of an activation."""
    trace = side.record.ranks[0].operations
    if trace is None:
        return False
    number = next((number for name, number in trace["names"].items() if name.startswith("batch/0/output/")), None)
    producers = {output: operation for operation in trace["operations"] for output in operation["outputs"]}
    while number in producers and normalize_name(producers[number]) in KEEPING:
        number = next(iter(producers[number]["inputs"]), None)
    name = normalize_name(producers[number]) if number in producers else ""
    return name in PRODUCTS or name.startswith("conv")


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
