"""Weights that scripts keep within bounds after each update, or within it as a constraint of Keras does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.diagnose.recorded.clipped_weights import Bounds, _are_alike, find_bounds
from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_format import StepFacts
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript

WEIGHT, OTHER = "fc2.weight", "fc1.weight"
START = np.array([-0.9, -0.6, 0.1, 0.3, 0.7, 0.8])
NUMBERS = st.floats(-1, 1, allow_subnormal=False)


@dataclass
class Clipping(NumpyScript):
    """A script that clips weights within or after each update."""

    lower: float = -np.inf
    upper: float = np.inf
    clipped: Sequence[str] = (WEIGHT,)
    is_within: bool = False

    def __post_init__(self) -> None:
        self._has_updated = False

    def clip_weights(self, weights: Arrays) -> Arrays:
        """Clip weights in place, and return what has changed."""
        before = dict(weights)
        weights |= {name: np.clip(weights[name], self.lower, self.upper) for name in self.clipped}
        return {name: weights[name] for name in self.clipped if not np.array_equal(weights[name], before[name])}

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        super().update(step, weights, slots, gradients)
        if self.is_within:
            self.clip_weights(weights)
        self._has_updated = True

    def _compute_rank(
        self, weights: Arrays, inputs: np.ndarray, labels: np.ndarray
    ) -> tuple[Arrays, Arrays, list[float | None]]:
        changed = self.clip_weights(weights) if self._has_updated and not self.is_within else {}
        self._changed = [self.rename(name) for name in changed]
        arrays, gradients, losses = super()._compute_rank(weights, inputs, labels)
        return arrays | self._name("changed_weight", changed), gradients, losses

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        facts = super()._build_facts(step, losses)
        return facts | {"changed_weights": self._changed} if self._changed else facts


def diagnose(path: Path, a: NumpyScript, b: NumpyScript) -> list[tuple[str, str]]:
    causes = diagnose_records(a.write(path / "a"), b.write(path / "b")).causes
    return [(cause.cause, cause.sentence) for cause in causes]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("within_a", [False, True])
@pytest.mark.parametrize("within_b", [False, True])
def test_scripts_that_clip_alike_do_not_differ(within_a: bool, within_b: bool, optimizer: str, tmp_path: Path) -> None:
    a, b = (Clipping(optimizer=optimizer, lower=-0.3, upper=0.3, is_within=within) for within in (within_a, within_b))
    assert diagnose(tmp_path, a, b) == []


def test_a_constraint_of_keras_equals_a_clip_of_a_script_in_pytorch(tmp_path: Path) -> None:
    a = Clipping(optimizer="sgd", decay=0.0, lower=-0.3, upper=0.3)
    b = Clipping("tensorflow", optimizer="sgd", decay=0.0, lower=-0.3, upper=0.3, is_within=True)
    assert diagnose(tmp_path, a, b) == []


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("name", ["A", "B"])
def test_a_script_that_alone_clips_is_named(name: str, is_within: bool, tmp_path: Path) -> None:
    scripts = [Clipping(optimizer="sgd"), Clipping(optimizer="sgd", lower=-0.3, upper=0.3, is_within=is_within)]
    ((cause, sentence),) = diagnose(tmp_path, *(scripts if name == "B" else scripts[::-1]))
    other = "A" if name == "B" else "B"
    assert cause == "clipped_weights"
    assert sentence == (
        f"the script of {name} keeps {WEIGHT} within [-0.3, 0.3] after each update, and that of {other} does not"
    )


@pytest.mark.parametrize("within_a", [False, True])
@pytest.mark.parametrize("within_b", [False, True])
def test_other_bounds_are_named(within_a: bool, within_b: bool, tmp_path: Path) -> None:
    a = Clipping(optimizer="sgd", lower=-0.3, upper=0.3, is_within=within_a)
    b = Clipping(optimizer="sgd", lower=-0.4, upper=0.4, is_within=within_b)
    ((cause, sentence),) = diagnose(tmp_path, a, b)
    assert cause == "clipped_weights"
    assert sentence == (
        f"the script of A keeps {WEIGHT} within [-0.3, 0.3] after each update, and that of B within [-0.4, 0.4]"
    )


@pytest.mark.parametrize(("bounds", "words"), [({"lower": 0.0}, "at 0 or more"), ({"upper": 0.25}, "at 0.25 or less")])
@pytest.mark.parametrize("is_within", [False, True])
def test_a_bound_on_one_side_is_named(bounds: dict[str, float], words: str, is_within: bool, tmp_path: Path) -> None:
    a, b = Clipping(optimizer="sgd"), Clipping(optimizer="sgd", is_within=is_within, **bounds)  # type: ignore[arg-type]
    ((cause, sentence),) = diagnose(tmp_path, a, b)
    assert cause == "clipped_weights"
    assert sentence == f"the script of B keeps {WEIGHT} {words} after each update, and that of A does not"


def test_other_parameters_that_differ_in_this_way_are_counted(tmp_path: Path) -> None:
    b = Clipping(optimizer="sgd", lower=-0.3, upper=0.3, clipped=(OTHER, WEIGHT))
    ((_, sentence),) = diagnose(tmp_path, Clipping(optimizer="sgd"), b)
    assert sentence.endswith("that of A does not (1 more differ in this way)")


def test_weights_within_the_bounds_of_the_other_script_are_no_difference() -> None:
    bounds, end = Bounds(-0.3, 0.3), np.array([-0.3, 0.1, 0.3])
    assert _are_alike(bounds, None, end, end)
    assert _are_alike(None, bounds, end, end)
    assert not _are_alike(bounds, None, end, end + 0.1)
    assert not _are_alike(None, bounds, end - 0.1, end)
    assert _are_alike(bounds, None, end, None)
    assert _are_alike(bounds, None, end, end[:0])


def test_the_bounds_are_the_largest_and_the_smallest_number_after_the_change() -> None:
    assert find_bounds({"w": (START, START.clip(-0.5, 0.5))}) == {"w": Bounds(-0.5, 0.5)}


def test_a_bound_that_no_element_shows_is_infinite() -> None:
    assert find_bounds({"w": (START, START.clip(-0.5, None))}) == {"w": Bounds(-0.5, np.inf)}
    assert find_bounds({"w": (START, START.clip(None, 0.5))}) == {"w": Bounds(-np.inf, 0.5)}


def test_the_words_of_bounds_leave_out_an_infinite_one() -> None:
    assert Bounds(-0.01, 0.01).words == "within [-0.01, 0.01]"
    assert Bounds(0.0, np.inf).words == "at 0 or more"
    assert Bounds(-np.inf, 2.5).words == "at 2.5 or less"


def test_a_bound_of_one_element_does_not_count() -> None:
    assert find_bounds({"w": (START, START.clip(None, 0.75))}) == {}


def test_one_clipped_element_counts_if_another_variable_has_its_bound() -> None:
    one, two = (START, START.clip(None, 0.75)), (np.array([0.8, 0.1, -0.9]), np.array([0.75, 0.1, -0.5]))
    assert find_bounds({"one": one, "two": two}) == {"one": Bounds(-np.inf, 0.75), "two": Bounds(-0.5, 0.75)}
    other = np.array([0.8, 0.1, -0.9]), np.array([0.65, 0.1, -0.5])
    assert find_bounds({"one": one, "two": other}).keys() == {"two"}


def test_weights_that_do_not_change_have_no_bounds() -> None:
    assert find_bounds({"w": (START, START), "empty": (START[:0], START[:0])}) == {}


def test_weights_that_change_by_rounding_have_no_bounds() -> None:
    assert find_bounds({"w": (START, START + 1e-7 * np.array([1, -1, 1, -1, 1, -1]))}) == {}


def test_weights_that_move_in_another_way_have_no_bounds() -> None:
    assert find_bounds({"w": (START, START * 0.99)}) == {}
    assert find_bounds({"w": (START, START + 0.01)}) == {}


def test_elements_that_are_unknown_before_the_change_have_any_value_within_the_bounds() -> None:
    start = START.copy()
    start[2] = np.nan
    assert find_bounds({"w": (start, START.clip(-0.5, 0.5))}) == {"w": Bounds(-0.5, 0.5)}


def test_weights_that_become_nan_have_no_bounds() -> None:
    end = START.clip(-0.5, 0.5)
    end[2] = np.nan
    assert find_bounds({"w": (START, end)}) == {}


@given(st.lists(NUMBERS, min_size=2, max_size=20), NUMBERS, NUMBERS)
def test_bounds_that_are_found_clip_to_what_was_recorded(start: list[float], x: float, y: float) -> None:
    before, (lower, upper) = np.array(start), sorted((x, y))
    after = before.clip(lower, upper)
    for bounds in find_bounds({"w": (before, after)}).values():
        assert np.abs(before.clip(*bounds) - after).max() <= 1e-4
        assert bounds.lower in (-np.inf, lower)
        assert bounds.upper in (np.inf, upper)
