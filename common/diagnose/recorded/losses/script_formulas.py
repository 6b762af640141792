"""Formulas of losses that need more than one output and its labels: CTC, and losses that compare embeddings."""

from collections.abc import Iterator

import numpy as np

from common.diagnose.recorded.losses.ctc_formulas import LABEL_LENGTHS, OUTPUT_LENGTHS, list_ctc_formulas
from common.diagnose.recorded.losses.embedding_formulas import MARGIN, TEMPERATURE, list_embedding_formulas
from common.diagnose.recorded.losses.loss_formulas import CLOSE
from common.diagnose.recorded.losses.loss_settings import CTC, read_loss_settings
from common.diagnose.recorded.recorded_side import RecordedSide

LEAST_LOSSES = 2  # that a fitted formula has to reproduce
MOST_LOSSES = 6  # that formulas are compared with, since a loss of a large batch takes seconds


def find_script_formulas(side: RecordedSide, step: int, precision: str) -> list[str]:
    """Return the names of the formulas that reproduce the losses of all micro-batches from a step on.

    The parameters of formulas that compare embeddings are fitted, so that more than one loss other than 0 has to agree.
    """
    names: list[str] | None = None
    losses: list[float] = []
    for number in (x for x in side.record.steps if x >= step):
        for micro_batch in side.batches.list_micro_batches(number)[: MOST_LOSSES - len(losses)]:
            loss = side.record.get_step_facts(number)[micro_batch[0]]["losses"][micro_batch[1]]
            if loss is None:
                return []
            losses.append(loss)
            tolerance = CLOSE[precision] * max(abs(loss), 1e-3)
            formulas = _list_formulas(side, number, micro_batch)
            fitting = [name for name, value in formulas if abs(value - loss) <= tolerance]
            names = fitting if names is None else [name for name in names if name in fitting]
            if not names:
                return []
    is_fitted = any(words in name for name in names or () for words in (TEMPERATURE, MARGIN))
    # A loss of 0 proves nothing: every triplet loss with a small margin is 0
    return [] if is_fitted and np.count_nonzero(losses) < LEAST_LOSSES else names or []


def _list_formulas(side: RecordedSide, step: int, micro_batch: tuple[int, int]) -> Iterator[tuple[str, float]]:
    """Yield the names and values of the formulas of a micro-batch."""
    calls = range(len(side.batches.count_rows(step, *micro_batch)))
    outputs = [[*side.batches.read_call(step, *micro_batch, "output", call).values()] for call in calls]
    if any(len(arrays) != 1 or arrays[0].dtype.kind != "f" for arrays in outputs):
        return
    loss = side.record.facts["loss"]
    if loss is not None and read_loss_settings(loss)["kind"] == CTC and len(outputs) == 1:
        yield from _list_ctc(side, step, micro_batch, outputs[0][0], loss["arguments"].get("blank", 0))
    elif len(outputs) > 1:
        yield from list_embedding_formulas([arrays[0] for arrays in outputs])


def _list_ctc(
    side: RecordedSide, step: int, micro_batch: tuple[int, int], outputs: np.ndarray, blank: object
) -> Iterator[tuple[str, float]]:
    """Yield the CTC losses. outputs: [n, time, classes] or [time, n, classes]. blank: the class of the blank."""
    arrays = side.batches.read_micro_batch(step, *micro_batch, "label")
    lengths = {name: array for name, array in arrays.items() if name in (LABEL_LENGTHS, OUTPUT_LENGTHS)}
    labels = next((x for name, x in arrays.items() if name not in lengths and x.ndim == 2), None)
    if labels is None or outputs.ndim != 3 or not labels.size or not outputs.size or not isinstance(blank, int):
        return
    if len(outputs) != len(labels):
        outputs = outputs.swapaxes(0, 1)
    limits = {OUTPUT_LENGTHS: (1, outputs.shape[1]), LABEL_LENGTHS: (0, labels.shape[1])}
    are_lengths = all(
        x.dtype.kind in "iu" and x.shape == labels.shape[:1] and lowest <= x.min() <= x.max() <= largest
        for x, (lowest, largest) in ((array, limits[name]) for name, array in lengths.items())
    )
    has_classes = 0 <= blank < outputs.shape[2] and 0 <= labels.min() <= labels.max() < outputs.shape[2]
    if len(outputs) == len(labels) and are_lengths and has_classes:
        yield from list_ctc_formulas(outputs.astype(np.float64), labels.astype(np.int64), lengths, blank)
