"""Arguments of recorded loss functions in one vocabulary for PyTorch and Keras.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import re
from collections.abc import Collection, Mapping

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.errors import one_line
from common.recording.record_format import LossFacts

CROSS_ENTROPY, BINARY, SQUARED, ABSOLUTE, HUBER = "cross entropy", "binary", "squared error", "absolute error", "huber"
CTC, KL, POISSON = "ctc", "kl divergence", "poisson"
# Kinds of losses by the name of the function or class, in lower case without underscores. The kind does not say whether
# the loss takes logits or probabilities: the stage "loss" finds that out.
KINDS = {
    "crossentropy": CROSS_ENTROPY, "crossentropyloss": CROSS_ENTROPY, "nllloss": CROSS_ENTROPY,
    "sparsecategoricalcrossentropy": CROSS_ENTROPY, "categoricalcrossentropy": CROSS_ENTROPY,
    "binarycrossentropy": BINARY, "binarycrossentropywithlogits": BINARY, "bcewithlogitsloss": BINARY,
    "bceloss": BINARY, "mseloss": SQUARED, "meansquarederror": SQUARED, "l1loss": ABSOLUTE,
    "meanabsoluteerror": ABSOLUTE, "huberloss": HUBER, "huber": HUBER, "smoothl1loss": HUBER,
    "ctc": CTC, "ctcloss": CTC, "kldiv": KL, "kldivloss": KL, "kldivergence": KL, "poissonnllloss": POISSON,
    "poisson": POISSON,
}  # fmt: skip
SEVERAL = "several"  # name of the loss if a model of several outputs has several loss functions
BY_SCRIPT = "none"  # the script itself reduces the losses; the stage "loss" finds out how
# Common names of reductions that Keras names differently
REDUCTIONS = {"sum_over_batch_size": "mean", "auto": "mean", "mean_with_sample_weight": "mean", None: BY_SCRIPT}
# The reductions of PyTorch's kl_div: Keras's KLDivergence sums over the classes before it averages
KL_REDUCTIONS = {"batchmean": "mean", "mean": "mean over examples and classes"}
# The reduction of PyTorch's ctc_loss: Keras's CTC averages over the examples
CTC_REDUCTIONS = {"mean": "mean of losses divided by the numbers of labels"}
POSITIVE_WEIGHT = "weight of positive labels"
LISTED = 3  # number of different weights that a sentence names
MOST_LETTERS = 60  # of the name of a function in a sentence
NOT_IGNORED = (-100, None)  # values of ignore_index with which no class is ignored
CAUSES = {  # the cause in diagnosis.json by the name of the setting that differs
    "label smoothing": "label_smoothing", "reduction": "loss_reduction", "ignored class": "ignored_labels",
    "kind": "loss_function", POSITIVE_WEIGHT: "class_weights",
}  # fmt: skip


def describe_kind(loss: LossFacts) -> str:
    """Describe the kind of a loss function, or return its name if the kind is unknown."""
    kind = KINDS.get(_normalize(loss["name"]))
    name = one_line(loss["name"].rpartition(".")[2])[:MOST_LETTERS]
    return {None: name, BINARY: "binary cross entropy"}.get(kind, str(kind))


def _normalize(name: str) -> str:
    return re.sub(r"[_\s]", "", name.rpartition(".")[2]).lower()


def read_loss_settings(loss: LossFacts) -> dict[str, object]:
    """Return the settings of a loss function under common names."""
    name = _normalize(loss["name"])
    arguments: Mapping[str, object] = loss["arguments"]
    reduction = arguments.get("reduction", "auto")
    if name == "kldiv" and isinstance(reduction, str):
        reduction = KL_REDUCTIONS.get(reduction, reduction)
    if name == "ctcloss" and isinstance(reduction, str):
        reduction = CTC_REDUCTIONS.get(reduction, reduction)
    ignored = arguments.get("ignore_index", arguments.get("ignore_class"))
    return {
        "kind": KINDS.get(name, name),
        "label smoothing": float(_to_number(arguments.get("label_smoothing"))),
        "reduction": REDUCTIONS.get(reduction, reduction)
        if reduction is None or isinstance(reduction, str)
        else "mean",
        "ignored class": None if ignored in NOT_IGNORED else ignored,
    }


def compare_loss_settings(stage: Stage, pair: RecordPair) -> None:
    """Add a cause for each setting in which the loss functions differ; the stage "loss" may confirm it.

    The stage "loss" compares the settings of several loss functions.
    """
    losses = [side.record.facts["loss"] for side in pair.sides]
    if any(loss is None or loss["name"] == SEVERAL for loss in losses) or any(map(_has_several, pair.sides)):
        return
    a, b = map(_read_effective_settings, pair.sides)
    for name, value in a.items():
        if name in ("reduction", "ignored class") and BY_SCRIPT in (a["reduction"], b["reduction"]):
            continue
        if name == "ignored class" and not _has_ignored_labels(pair, {value, b[name]} - {None}):
            continue
        if name in ("kind", POSITIVE_WEIGHT) and any(map(is_of_script, losses)):
            continue  # a name shows nothing: the stage "loss" compares what the function computes
        if value != b[name] and not (name != "kind" and a["kind"] != b["kind"]):
            stage.add_mismatch(f"loss: {name}")
            sentence = f"the loss function's {name} is {value} in A and {b[name]} in B"
            stage.add_cause(CAUSES[name], "b", "loss", sentence, confirmed=False)


def is_of_script(loss: LossFacts | None) -> bool:
    """Check whether a loss function is one of the script, and none of a library."""
    return loss is not None and _normalize(loss["name"]) not in KINDS and not loss["name"].startswith("keras.losses.")


def _read_effective_settings(side: RecordedSide) -> dict[str, object]:
    """Return the settings of a side's loss function, with the mean for a sum that the script divides itself."""
    loss = side.record.facts["loss"]
    assert loss is not None
    settings, step = read_loss_settings(loss), side.record.steps[0]
    named = [
        (name, label)
        for rank, number in side.batches.list_micro_batches(step)
        for name, label in side.batches.read_micro_batch(step, rank, number, "label").items()
    ]
    labels = [label for _, label in named]
    weights = next((label for name, label in named if name == "pos_weight"), None)
    different = [1.0] if weights is None else [float(x) for x in np.unique(weights)[:LISTED]]
    settings[POSITIVE_WEIGHT] = different[0] if len(different) == 1 else different
    if settings["kind"] == KL and _are_hard(labels):
        settings.update({"kind": CROSS_ENTROPY, "reduction": BY_SCRIPT})
    if settings["kind"] == CTC and settings["reduction"] == "sum":
        terms = [terms for facts in side.record.get_step_facts(step) for terms in facts.get("terms", [])]
        counts = side.batches.count_examples(step)
        if len(terms) == len(counts) and all(
            len(batch) == 1 and batch[0]["share"] is not None and np.isclose(batch[0]["share"] * n, batch[0]["value"])
            for batch, n in zip(terms, counts, strict=True)
        ):
            settings["reduction"] = "mean"
    return settings


def _are_hard(labels: Collection[np.ndarray]) -> bool:
    """Check whether each example has one class or none, for which the divergence is the cross entropy."""
    return bool(labels) and all(
        x.ndim > 1 and bool(((x == 0) | (x == 1)).all() and (x.sum(-1) <= 1).all()) for x in labels
    )


def _has_ignored_labels(pair: RecordPair, ignored: set[object]) -> bool:
    """Check whether a recorded label may be of a class that one side ignores."""
    for side in pair.sides:
        for step in pair.steps:
            labels = side.batches.read_labels(step)
            if not labels or side.batches.has_abridged_labels(step):
                return True
            if any(np.any(label == value) for label in labels.values() for value in ignored):
                return True
    return False


def _has_several(side: RecordedSide) -> bool:
    """Check whether the loss of a micro-batch of the first step is the sum of several calls of loss functions."""
    facts = side.get_facts(side.record.steps[0])
    return any(len(batch) > 1 for batch in facts.get("terms", []))


def _to_number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
