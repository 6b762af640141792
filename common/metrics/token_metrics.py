"""Metrics of sequences of tokens, computed by sacreBLEU."""

import sacrebleu

from common.config.metrics import CLASSES
from common.metrics.predictions import Predictions


def compute_bleu(predictions: Predictions, ignore_label: int | None = None) -> float:
    """Return the BLEU of the predicted tokens of all examples, from 0 to 100 (Papineni et al., 2002).

    A token counts as a word. The model predicts each token from the true tokens before it. Positions with a label below
    0, or equal to `ignore_label`, do not count.
    """
    labels = predictions.labels
    classes = predictions.outputs
    if predictions.kind != CLASSES:
        classes = classes.reshape((*labels.shape, -1)).argmax(-1)
    is_counted = (labels >= 0) & (labels != ignore_label)
    if not is_counted.any():
        raise ValueError("all labels are ignored")
    predicted, expected = (
        [" ".join(map(str, row[counted].astype(int))) for row, counted in zip(tokens, is_counted, strict=True)]
        for tokens in (classes, labels)
    )
    return float(sacrebleu.corpus_bleu(predicted, [expected], tokenize="none", force=True).score)
