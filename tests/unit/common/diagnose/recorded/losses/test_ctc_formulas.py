"""Values of the losses of CTC, against the sum over all paths, and against PyTorch's."""

from itertools import groupby, product

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from common.diagnose.recorded.losses.ctc_formulas import list_ctc_formulas

STREAM = np.random.default_rng(0)
LOGITS = STREAM.standard_normal((3, 5, 4))
LABELS = {0: np.array([[1, 2], [3, 3], [2, 0]]), 3: np.array([[1, 2], [0, 0], [2, 3]])}  # with padding, by the blank


def sum_paths(logarithms: np.ndarray, labels: list[int], blank: int) -> float:
    """Return the loss from the probabilities of all paths whose repeated classes and blanks leave the labels."""
    total = 0.0
    for path in product(range(logarithms.shape[1]), repeat=len(logarithms)):
        if [label for label, _ in groupby(path) if label != blank] == labels:
            total += float(np.exp(logarithms[np.arange(len(path)), path].sum()))
    return -float(np.log(total))


@pytest.mark.parametrize("blank", [0, 3])
@pytest.mark.parametrize(("words", "has_softmax"), [("", True), (" of outputs without log_softmax", False)])
def test_the_loss_is_that_of_all_paths(blank: int, words: str, has_softmax: bool) -> None:
    texts = [[int(label) for label in row if label != blank] for row in LABELS[blank]]
    logarithms = log_softmax(LOGITS, -1) if has_softmax else LOGITS
    losses = np.array([sum_paths(x, text, blank) for x, text in zip(logarithms, texts, strict=True)])
    formulas = dict(list_ctc_formulas(LOGITS, LABELS[blank], {}, blank))
    named = f"ctc{words} with the blank 3" if blank else f"ctc{words}"
    assert formulas[f"{named}, mean"] == pytest.approx(losses.mean())
    assert formulas[f"{named}, sum"] == pytest.approx(losses.sum())
    divided = (losses / [len(text) for text in texts]).mean()
    assert formulas[f"{named}, mean of losses divided by the numbers of labels"] == pytest.approx(divided)


def test_the_outputs_after_the_length_of_an_example_do_not_count() -> None:
    lengths = {"input_lengths": np.array([4, 3, 4]), "target_lengths": np.array([2, 2, 1])}
    formulas = dict(list_ctc_formulas(LOGITS, LABELS[0], lengths, 0))
    logarithms = log_softmax(LOGITS, -1)
    losses = [sum_paths(logarithms[0, :4], [1, 2], 0), sum_paths(logarithms[1, :3], [3, 3], 0)]
    losses.append(sum_paths(logarithms[2, :4], [2], 0))
    assert formulas["ctc of the first 3 to 4 time steps, sum"] == pytest.approx(sum(losses))


def test_examples_without_labels_have_the_loss_of_pytorch() -> None:
    steps, counts = np.array([5, 4, 5]), np.array([0, 2, 1])
    logarithms = torch.from_numpy(LOGITS).log_softmax(-1).transpose(0, 1)
    labels, lengths, label_lengths = map(torch.from_numpy, (LABELS[0], steps, counts))
    expected = torch.nn.functional.ctc_loss(logarithms, labels, lengths, label_lengths, reduction="sum")
    formulas = dict(list_ctc_formulas(LOGITS, LABELS[0], {"input_lengths": steps, "target_lengths": counts}, 0))
    assert formulas["ctc of the first 4 to 5 time steps, sum"] == pytest.approx(float(expected))
