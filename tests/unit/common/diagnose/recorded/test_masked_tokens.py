"""Tests of tokens that only one of two models hides from its layers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.masked_tokens import add_padded_examples, explain_mask_zero

IDS = np.array([[5, 7, 0, 0], [3, 1, 4, 2], [6, 1, 9, 0]])
A = np.random.default_rng(0).normal(size=(3, 5))


def make_pair(*masks: bool) -> Any:
    sides = [SimpleNamespace(layers=[{"path": "embedding", "attributes": {"mask_zero": mask}}]) for mask in masks]
    return SimpleNamespace(sides=sides)


def change(rows: list[int]) -> np.ndarray:
    b = A.copy()
    b[rows] += 1
    return b


@pytest.mark.parametrize("name", ["A", "B"])
def test_only_examples_with_the_id_0_differ(name: str) -> None:
    pair = make_pair(name == "A", name == "B")
    explanation = explain_mask_zero(pair, "lstm", (A, change([0, 2])), [IDS], np.allclose)
    assert explanation is not None
    assert (explanation.cause, explanation.side, explanation.confirmed) == ("mask_zero", name.lower(), True)
    assert explanation.sentence.startswith(f"lstm: {name} hides the id 0, because embedding has mask_zero=True, and")


def test_without_an_example_without_the_id_0_nothing_is_confirmed() -> None:
    explanation = explain_mask_zero(make_pair(True, False), "", (A[::2], change([0, 2])[::2]), [IDS[::2]], np.allclose)
    assert explanation is not None
    assert not explanation.confirmed


@pytest.mark.parametrize("masks", [(True, True), (False, False)])
def test_masks_of_both_models_explain_nothing(masks: tuple[bool, bool]) -> None:
    assert explain_mask_zero(make_pair(*masks), "", (A, change([0])), [IDS], np.allclose) is None


def test_another_example_differs_for_another_reason() -> None:
    assert explain_mask_zero(make_pair(True, False), "", (A, change([0, 1])), [IDS], np.allclose) is None
    assert explain_mask_zero(make_pair(True, False), "", (A, change([0])), [IDS[:, :2]], np.allclose) is None


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_script_that_packs_sequences_hides_what_a_lost_mask_does_not(name: str) -> None:
    """The masking script is `name`, and its layer computes on the padding."""
    computed = np.random.default_rng(1).normal(size=(*IDS.shape, 2))
    packed = np.where(IDS[..., None] == 0, 0, computed)
    arrays = (computed, packed) if name == "A" else (packed, computed)
    explanation = explain_mask_zero(make_pair(name == "A", name == "B"), "dense", arrays, [IDS], np.allclose)
    assert explanation is not None
    other = "B" if name == "A" else "A"
    assert explanation.sentence.startswith(f"dense: {other} leaves out the tokens with the id 0, and {name} does not, ")
    assert (explanation.side, explanation.confirmed) == (name.lower(), True)


UNCERTAIN = Explanation("operation", "lstm: compare the code", confirmed=False, side="b")


@pytest.mark.parametrize(("equal", "words"), [(slice(None), ""), (slice(2), " in 2 of 5 numbers")])
def test_equal_examples_without_padding_are_named(equal: slice, words: str) -> None:
    """The other numbers may come from the other direction of a recurrent layer."""
    b = A + 1
    b[1, equal] = A[1, equal]
    explanation = add_padded_examples(UNCERTAIN, "lstm", (A, b), [IDS[:, :2], IDS], np.allclose)
    assert (explanation.cause, explanation.side, explanation.confirmed) == ("padded_examples", "b", True)
    start = f"lstm: the examples without padding are equal{words}, and 2 of 2 with padding differ: "
    assert explanation.sentence.startswith(start)
    assert explanation.sentence.endswith("where they take the last token; compare the code")


@pytest.mark.parametrize(
    ("a", "b", "ids"),
    [
        (A, change([0, 1]), IDS),
        (A, change([0]), IDS),
        (A, A.copy(), IDS),
        (A, change([0, 2]), np.ones_like(IDS)),
        (A, change([0, 2])[:, :4], IDS),
        (np.where(np.arange(3)[:, None] == 1, 0, A), np.where(np.arange(3)[:, None] == 1, 0, change([0, 2])), IDS),
    ],
    ids=["differ without padding", "half of them", "equal", "no padding", "other shapes", "zeros"],
)
def test_other_differences_are_not_explained_by_padding(a: np.ndarray, b: np.ndarray, ids: np.ndarray) -> None:
    assert add_padded_examples(UNCERTAIN, "lstm", (a, b), [ids], np.allclose) is UNCERTAIN
