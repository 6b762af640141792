"""Tests of the formulas that compute a recorded loss from outputs and labels."""

import numpy as np
import pytest
from scipy.special import expit

from common.diagnose.explain.loss_formulas import KERAS_EPSILON
from common.diagnose.recorded.losses.loss_formulas import find_formulas

STREAM = np.random.default_rng(0)
LOGITS, LABELS = STREAM.normal(size=(8, 1)), np.arange(8) % 2
FUNCTIONS = {  # the probability that a loss function computes from an output
    "binary cross entropy, mean": expit,
    "binary cross entropy of logits taken as probabilities, mean": lambda x: np.clip(x, KERAS_EPSILON, 1 - 1e-7),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("has_large_logits", [True, False])
def test_one_output_with_whole_labels_is_binary(name: str, has_large_logits: bool) -> None:
    """Logits from 0 to 1 look like probabilities, unless the model is known to return logits."""
    logits = 2 * LOGITS if has_large_logits else expit(LOGITS)
    probabilities = FUNCTIONS[name](logits)[:, 0]
    loss = -float(np.log(np.where(LABELS > 0, probabilities, 1 - probabilities)).mean())
    for labels in (LABELS, LABELS[:, None]):
        assert find_formulas(logits, labels, loss, "float64", are_logits=True) == [name]
