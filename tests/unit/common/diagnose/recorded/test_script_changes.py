"""Diagnoses of scripts that change their gradients themselves: decay, clipping, scaling and masks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.walk import diagnose_records
from common.recording.gradient_changes import GradientChanges, find_changes
from common.recording.record_format import StepFacts
from common.recording.record_reader import open_record
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript

Edit = Callable[[Arrays, Arrays], Arrays]  # from gradients and weights to the gradients that the optimizer receives


class Edited(NumpyScript):
    """A script that changes its gradients itself. Its record shows how."""

    edit: Edit
    returned: Arrays
    weights_before: Arrays
    edited: Arrays
    changes: GradientChanges

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        self.returned, self.weights_before = super().backward(weights, calls, outputs_gradient), dict(weights)
        edited = self.edit(self.returned, self.weights_before)
        self.edited = {name: array.astype(np.float32) for name, array in edited.items()}
        return self.edited

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        self.changes = find_changes(self.returned, self.edited, self.weights_before.__getitem__)
        factors, decays = (
            {self.rename(name): number for name, number in numbers.items()}
            for numbers in (self.changes.factors, self.changes.decays)
        )
        return {**super()._build_facts(step, losses), "clip_factors": factors, "decays": decays}

    def _name(self, prefix: str, arrays: Arrays) -> Arrays:
        named = super()._name(prefix, arrays)
        return named | super()._name("gradient_unclipped", self.changes.others) if prefix == "gradient" else named


class GeluEdited(Edited):
    """A script with another activation, beside what it does to its gradients."""

    def activate(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x * expit(x))


def make(edit: Edit, optimizer: str = "sgd", kind: type[Edited] = Edited, framework: str = "tensorflow") -> Edited:
    """Return a script whose optimizer has no weight decay."""
    script = kind(framework, optimizer, decay=0.0)
    script.edit = edit
    return script


def decay(gradients: Arrays, weights: Arrays) -> Arrays:
    return {name: array + np.float32(0.01) * weights[name] for name, array in gradients.items()}


def decay_kernels(gradients: Arrays, weights: Arrays) -> Arrays:
    return gradients | {name: array for name, array in decay(gradients, weights).items() if array.ndim > 1}


def decay_twice(gradients: Arrays, weights: Arrays) -> Arrays:
    return decay(decay(gradients, weights), weights)


def clip(gradients: Arrays, weights: Arrays) -> Arrays:
    norm = float(np.sqrt(sum(float((array**2).sum()) for array in gradients.values())))
    return {name: array * np.float32(min(1.0, 0.1 / norm)) for name, array in gradients.items()}


def clip_each(gradients: Arrays, weights: Arrays) -> Arrays:
    return {name: x * np.float32(min(1.0, 0.1 / float(np.linalg.norm(x)))) for name, x in gradients.items()}


def clip_then_decay(gradients: Arrays, weights: Arrays) -> Arrays:
    return decay(clip(gradients, weights), weights)


def decay_then_clip(gradients: Arrays, weights: Arrays) -> Arrays:
    return clip(decay(gradients, weights), weights)


def mask(gradients: Arrays, weights: Arrays) -> Arrays:
    return {name: array * (np.arange(array.size).reshape(array.shape) % 3 > 0) for name, array in gradients.items()}


def halve_one(gradients: Arrays, weights: Arrays) -> Arrays:
    return gradients | {"fc1.weight": gradients["fc1.weight"] / 2}


def diagnose(tmp_path: Path, a: NumpyScript, b: NumpyScript) -> Diagnosis:
    return diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))


UNCHANGED = NumpyScript(optimizer="sgd", decay=0.0)
SGD = NumpyScript(optimizer="sgd", decay=0.01)
FROZEN = NumpyScript(optimizer="sgd", decay=0.0, frozen=("fc1.bias",))
UNDECAYED = NumpyScript(optimizer="sgd", decay=0.01, undecayed=("fc1.bias", "fc2.bias"))
CLEAN = {
    "decay": (SGD, make(decay)),
    "decay in PyTorch": (make(decay, framework="torch"), make(decay)),
    "decay with Adam": (NumpyScript(optimizer="adam", decay=0.01), make(decay, "adam")),
    "decay in both": (make(decay), make(decay)),
    "decay of kernels": (UNDECAYED, make(decay_kernels)),
    "clipping": (NumpyScript(optimizer="sgd", decay=0.0, max_norm=0.1), make(clip)),
    "clipping in both": (make(clip), make(clip)),
    "clipping and decay": (NumpyScript(optimizer="sgd", decay=0.01, max_norm=0.1), make(clip_then_decay)),
    "decay and clipping in both": (make(decay_then_clip), make(decay_then_clip)),
    "frozen by zeros": (FROZEN, make(lambda g, w: g | {"fc1.bias": np.zeros_like(g["fc1.bias"])})),
    "mask in both": (make(mask), make(mask)),
    "scale in both": (make(lambda g, w: {name: x / 2 for name, x in g.items()}),) * 2,
}


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_same_change_in_another_place_is_no_difference(name: str, is_swapped: bool, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, *(CLEAN[name][::-1] if is_swapped else CLEAN[name]))
    assert [cause.sentence for cause in diagnosis.causes] == []
    assert diagnosis.is_equal


MISTAKES = {
    "twice": ("weight_decay", SGD, make(decay_twice), "is 0.01 in A and 0.02 in B: the script of B adds it"),
    "none": ("no_weight_decay", make(decay), UNCHANGED, "is 0.01 in A and 0.0 in B"),
    "biases": ("weight_decay_on_biases", UNDECAYED, make(decay), "0.0 in A and 0.01 in B for fc1.bias | fc1/bias"),
    "kernels": ("weight_decay_on_biases", SGD, make(decay_kernels), "0.01 in A and 0.0 in B for fc1.bias | fc1/bias"),
    "coupled": ("weight_decay_coupled", NumpyScript(), make(decay, "adam"), "decoupled in A and part of the gradient"),
    "each": (
        "clipped_per_variable",
        NumpyScript(optimizer="sgd", decay=0.0, max_norm=0.1),
        make(clip_each),
        "clipped to the norm 0.1 in A and clipped to the norm of each variable 0.1 in B",
    ),
    "clipping in B": ("not_clipped", UNCHANGED, make(clip), "clipped to the norm 0.1 in B"),
    "mask": (
        "changed_gradients",
        UNCHANGED,
        make(mask),
        "not changed in A and changed by the script in B",
    ),
    "mask in A": ("changed_gradients", make(mask), UNCHANGED, "changed by the script in A and not changed in B"),
    "one variable": ("changed_gradients", make(halve_one), UNCHANGED, "not changed in B"),
    "other masks": ("gradient", make(mask), make(halve_one), "4 gradients differ"),
    "place": ("decay_before_clipping", make(clip_then_decay), make(decay_then_clip), "B adds the weight decay"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_other_changes_are_named(name: str, tmp_path: Path) -> None:
    cause, a, b, words = MISTAKES[name]
    diagnosis = diagnose(tmp_path, a, b)
    assert [known.cause for known in diagnosis.causes] == [cause], [known.sentence for known in diagnosis.causes]
    assert words in diagnosis.causes[0].sentence


@pytest.mark.parametrize("edit", [decay, decay_kernels, clip_then_decay])
def test_a_decay_is_not_blamed_beside_another_mistake(edit: Edit, tmp_path: Path) -> None:
    undecayed = UNDECAYED.undecayed if edit is decay_kernels else ()
    max_norm = 0.1 if edit is clip_then_decay else None
    a = NumpyScript(optimizer="sgd", decay=0.01, undecayed=undecayed, max_norm=max_norm)
    diagnosis = diagnose(tmp_path, a, make(edit, kind=GeluEdited))
    assert [cause.cause for cause in diagnosis.causes] == ["activation"], [x.sentence for x in diagnosis.causes]


@pytest.mark.parametrize(("edit", "is_clipped"), [(clip_then_decay, False), (decay_then_clip, True)])
def test_the_place_of_the_decay_is_found(edit: Edit, is_clipped: bool, tmp_path: Path) -> None:
    side = RecordedSide("a", open_record(make(edit).write(tmp_path)))
    assert side.changes.is_decay_clipped is is_clipped
    assert side.changes.decays == {"fc1/kernel": 0.01, "fc1/bias": 0.01, "fc2/kernel": 0.01, "fc2/bias": 0.01}
