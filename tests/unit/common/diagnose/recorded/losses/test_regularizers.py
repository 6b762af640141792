"""Tests of a regularizer whose penalty the other script may add itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript

FACTOR = 0.1  # of L2


class PenaltyByHand(NumpyScript):
    """A script that adds the penalty of the first layer's weight to its loss."""

    scale = 1.0  # factor of the loss without the penalty

    def forward(self, weights: Arrays, x: np.ndarray) -> Arrays:
        self.penalty = FACTOR * float(np.square(weights["fc1.weight"].astype(np.float64)).sum())
        return super().forward(weights, x)

    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(outputs, labels)
        return self.scale * loss + self.penalty, self.scale * gradient

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        gradients = super().backward(weights, calls, outputs_gradient)
        gradients["fc1.weight"] += 2 * FACTOR * weights["fc1.weight"]
        return gradients


class Regularized(PenaltyByHand):
    """A script of Keras with a regularizer."""

    def _describe(self, writer: Any) -> None:
        super()._describe(writer)
        layer = next(layer for layer in writer.facts["model"]["layers"] if layer["path"] == "fc1")
        layer["attributes"] = {"kernel_regularizer": [0.0, FACTOR]}


class DoubledLoss(PenaltyByHand):
    """A script with the penalty, and another mistake in its loss."""

    scale = 2.0


class OtherActivation(PenaltyByHand):
    """A script with the penalty, and another activation: its loss cannot show whether it has the penalty."""

    def activate(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x)


@pytest.mark.parametrize(
    ("script", "cause"),
    [(PenaltyByHand, None), (DoubledLoss, "loss_function"), (OtherActivation, "activation"),
     (NumpyScript, "l2_in_loss")],
)  # fmt: skip
def test_regularizer_is_a_cause_only_if_the_loss_lacks_its_penalty(
    script: type[NumpyScript], cause: str | None, tmp_path: Path
) -> None:
    a, b = Regularized("tensorflow", optimizer="sgd", decay=0.0), script("torch", optimizer="sgd", decay=0.0)
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    causes = [row.cause for row in diagnosis.causes]
    assert causes[:1] == ([] if cause is None else [cause]), diagnosis.causes
    assert ("l2_in_loss" in causes) == (cause == "l2_in_loss")


class RegularizedEverywhere(NumpyScript):
    """A script of Keras with a regularizer of each variable."""

    def forward(self, weights: Arrays, x: np.ndarray) -> Arrays:
        self.penalty = FACTOR * sum(float(np.square(w.astype(np.float64)).sum()) for w in weights.values())
        return super().forward(weights, x)

    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(outputs, labels)
        return loss + self.penalty, gradient

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        gradients = super().backward(weights, calls, outputs_gradient)
        return {name: gradient + 2 * FACTOR * weights[name] for name, gradient in gradients.items()}

    def _describe(self, writer: Any) -> None:
        super()._describe(writer)
        for layer in writer.facts["model"]["layers"]:
            layer["attributes"] |= {f"{role}_regularizer": [0.0, FACTOR] for role in layer["variables"]}


class Squashed(RegularizedEverywhere):
    """The same with another activation, so that no gradient shows whether the loss has the penalty."""

    def activate(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x)


@pytest.mark.parametrize(
    ("script", "decay", "expected"),
    [
        (RegularizedEverywhere, 2 * FACTOR, ["decay_in_loss"]),
        (RegularizedEverywhere, FACTOR, ["weight_decay", "l2_in_loss"]),
        (Squashed, 2 * FACTOR, ["activation", "decay_in_loss"]),
    ],
)
def test_a_regularizer_in_place_of_a_weight_decay(
    script: type[NumpyScript], decay: float, expected: list[str], tmp_path: Path
) -> None:
    a, b = NumpyScript("torch", optimizer="sgd", decay=decay), script("tensorflow", optimizer="sgd", decay=0.0)
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    assert [cause.cause for cause in diagnosis.causes] == expected, diagnosis.causes


class Scaled(RegularizedEverywhere):
    """A script that also scales its loss, but not the penalty."""

    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(outputs, labels)
        return 0.9 * (loss - self.penalty) + self.penalty, 0.9 * gradient


def test_a_penalty_in_place_of_a_weight_decay_hides_no_other_difference_of_the_loss(tmp_path: Path) -> None:
    a = NumpyScript("torch", optimizer="sgd", decay=2 * FACTOR)
    b = Scaled("tensorflow", optimizer="sgd", decay=0.0)
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    assert (cause := diagnosis.causes[0]).cause == "loss_function", diagnosis.causes
    assert "B computes 0.9 times A's loss" in cause.sentence


def test_a_decoupled_weight_decay_is_no_penalty(tmp_path: Path) -> None:
    a = NumpyScript("torch", optimizer="adamw", decay=2 * FACTOR)
    b = Squashed("tensorflow", optimizer="adamw", decay=0.0)
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    assert "decay_in_loss" not in {cause.cause for cause in diagnosis.causes}


@pytest.mark.parametrize(("optimizer", "is_listed"), [("sgd", False), ("adamw", True)])
def test_a_weight_decay_in_place_of_a_regularizer_is_not_listed_with_the_others(
    optimizer: str, is_listed: bool, tmp_path: Path
) -> None:
    """Only the first weight has a regularizer. A decoupled weight decay has another effect."""
    a = NumpyScript("torch", optimizer=optimizer, decay=2 * FACTOR)
    b = Regularized("tensorflow", optimizer=optimizer, decay=0.0)
    causes = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b")).causes
    decays = [cause for cause in causes if cause.cause == "no_weight_decay"]
    assert [cause.tensor for cause in decays][-1:] == ["weight_decay with L2 regularizers"]
    assert [cause.tensor for cause in decays][:-1] == ["weight_decay"] * is_listed
    assert "fc1.weight" not in decays[-1].sentence
    assert all(name in decays[-1].sentence for name in ("fc1.bias", "fc2.weight", "fc2.bias"))
