"""Diagnoses of records with planted mistakes: the first cause that is named, and clean pairs without any."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.findings import Stage
from common.diagnose.recorded.losses.loss_settings import read_loss_settings
from common.diagnose.recorded.walk import _drop_needless_causes, diagnose_records
from common.recording.record_format import RECORD, LayerFacts
from common.recording.record_reader import open_record
from common.recording.record_writer import RecordWriter
from tests.unit.common.recording.numpy_script import (
    Arrays,
    NumpyScript,
    draw_batches,
    draw_weights,
)

SCHEDULE = [0.01, 0.008, 0.006, 0.004, 0.002]
DROPOUT = {
    "kind": "Dropout", "path": "drop", "attributes": {"p": 0.5}, "variables": {}, "unflattened_shape": None,
    "composite": None, "training": False,
}  # fmt: skip
NO_BIASES = {name: array * (array.ndim > 1) for name, array in draw_weights().items()}
GELU = {**DROPOUT, "kind": "GELU", "path": "gelu"}


def diagnose(tmp_path: Path, a: NumpyScript, b: NumpyScript) -> Diagnosis:
    return diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))


CLEAN: dict[str, tuple[NumpyScript, NumpyScript]] = {
    "itself": (NumpyScript(), NumpyScript()),
    "ranks": (NumpyScript(), NumpyScript(ranks=3)),
    "accumulation": (NumpyScript(micro_batches=4), NumpyScript()),
    "ranks and accumulation": (NumpyScript(ranks=2, micro_batches=2), NumpyScript(micro_batches=3)),
    "frameworks": (NumpyScript(), NumpyScript(framework="tensorflow")),
    "keras and torch": (NumpyScript("tensorflow", "sgd", decay=0.0), NumpyScript("torch", "sgd", decay=0.0)),
    "keras ranks": (
        NumpyScript("tensorflow", "adam", decay=0.0, ranks=2),
        NumpyScript("tensorflow", "adam", decay=0.0),
    ),
    "sgd": (NumpyScript(optimizer="sgd", nesterov=True), NumpyScript(optimizer="sgd", nesterov=True, ranks=2)),
    "sgd without momentum": (NumpyScript(optimizer="sgd", momentum=0.0),) * 2,
    "clipping": (NumpyScript(max_norm=0.1), NumpyScript(max_norm=0.1, ranks=2)),
    "rounding of the limit": (NumpyScript(max_norm=0.1), NumpyScript(max_norm=0.1 * (1 + 1e-7))),
    "clipping in formats 1 and 2": (NumpyScript(max_norm=0.1, format=1), NumpyScript(max_norm=0.1, format=2)),
    "ranks in format 1": (NumpyScript(ranks=2, format=1), NumpyScript()),
    "groups": (NumpyScript(undecayed=("fc1.bias", "fc2.bias")),) * 2,
    "schedule": (NumpyScript(rates=SCHEDULE), NumpyScript(rates=SCHEDULE, framework="tensorflow")),
    "smoothing": (NumpyScript(smoothing=0.1, loss_arguments={"label_smoothing": 0.1}),) * 2,
    "float64": (NumpyScript(dtype="float64", weights={k: v.astype(float) for k, v in draw_weights().items()}),) * 2,
    "places of Adam's epsilon": (
        NumpyScript(epsilon=1e-5, weights=NO_BIASES),
        NumpyScript("tensorflow", epsilon=1e-5, weights=NO_BIASES),
    ),
    "versions": (NumpyScript(flags={"threads": 1}), NumpyScript(flags={"threads": 8, "deterministic": True})),
}


class LabelsAsInput(NumpyScript):
    """A model that computes its own loss, and so receives the labels too."""

    def _compute_rank(self, *args: Any) -> Any:
        arrays, *computed = super()._compute_rank(*args)
        labels = {name.replace("label/0", "input/targets"): x for name, x in arrays.items() if "/label/" in name}
        return arrays | labels, *computed


class LabelsWithLengths(NumpyScript):
    """A script whose loss function also receives lengths, which a record sorts before the labels."""

    def _compute_rank(self, *args: Any) -> Any:
        arrays, *others = super()._compute_rank(*args)
        lengths = {
            name.replace("label/0", "label/lengths"): np.full(len(x), 20)
            for name, x in arrays.items()
            if "/label" in name
        }
        labels = {name.replace("label/0", "label/targets"): x for name, x in arrays.items() if "/label" in name}
        return {name: x for name, x in arrays.items() if "/label" not in name} | lengths | labels, *others


CLEAN |= {
    "labels as an input": (NumpyScript(), LabelsAsInput()),
    "labels with lengths": (NumpyScript(), LabelsWithLengths()),
    "an ignored class without labels": (NumpyScript(), NumpyScript(loss_arguments={"ignore_index": -1})),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_pairs(name: str, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, *CLEAN[name])
    assert [(cause.cause, cause.sentence) for cause in diagnosis.causes] == []
    assert diagnosis.is_equal


# What a script does itself in place of its optimizer


class DecayByScript(NumpyScript):
    """A script that adds the weight decay to its gradients. Its optimizer has none."""

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        self.decay = 0.0
        super().update(step, weights, slots, gradients)
        self.decay = 0.01

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        gradients = super().backward(weights, calls, outputs_gradient)
        return {name: x + np.float32(0.01) * weights[name] for name, x in gradients.items()}

    def _describe(self, writer: RecordWriter) -> None:
        self.decay = 0.0
        super()._describe(writer)
        self.decay = 0.01


class PenaltyInLoss(DecayByScript):
    """A script that adds the weight decay to its loss."""

    def _compute_rank(self, weights: Arrays, *batch: np.ndarray) -> tuple[Arrays, Arrays, list[float | None]]:
        arrays, gradients, losses = super()._compute_rank(weights, *batch)
        penalty = 0.005 * sum(float(np.square(x).sum()) for x in weights.values())
        return arrays, gradients, [penalty + (loss or 0.0) for loss in losses]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("is_first", [True, False])
def test_weight_decay_that_a_script_adds_itself_is_no_difference(
    optimizer: str, is_first: bool, tmp_path: Path
) -> None:
    scripts = [DecayByScript(optimizer=optimizer), NumpyScript(optimizer=optimizer)]
    diagnosis = diagnose(tmp_path, *(scripts if is_first else scripts[::-1]))
    assert [cause.sentence for cause in diagnosis.causes] == []
    assert diagnosis.is_equal


@pytest.mark.parametrize(
    ("b", "cause"),
    [
        (PenaltyInLoss(optimizer="sgd"), "decay_in_loss"),
        (NumpyScript(optimizer="sgd", decay=0.0), "no_weight_decay"),
    ],
)
def test_weight_decay_in_the_loss_or_nowhere_is_a_difference(b: NumpyScript, cause: str, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, NumpyScript(optimizer="sgd"), b)
    assert [known.cause for known in diagnosis.causes] == [cause]


class LabelsOnlyAsInput(NumpyScript):
    """A script without a loss function: its model receives the labels."""

    def _compute_rank(self, weights: Arrays, *batch: np.ndarray) -> tuple[Arrays, Arrays, list[float | None]]:
        arrays, gradients, losses = super()._compute_rank(weights, *batch)
        return {name.replace("/label/0", "/input/labels"): x for name, x in arrays.items()}, gradients, losses


class ProbabilitiesAsOutput(NumpyScript):
    """A script whose model ends in softmax. Its loss is the same."""

    def _compute_rank(self, weights: Arrays, *batch: np.ndarray) -> tuple[Arrays, Arrays, list[float | None]]:
        arrays, gradients, losses = super()._compute_rank(weights, *batch)
        return arrays | {"batch/0/output/0": softmax(arrays["batch/0/output/0"], 1)}, gradients, losses


@pytest.mark.parametrize("script", [LabelsOnlyAsInput, ProbabilitiesAsOutput])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_belongs_to_the_model_or_to_the_loss_is_no_difference(
    script: type[NumpyScript], is_first: bool, tmp_path: Path
) -> None:
    diagnosis = diagnose(tmp_path, *([script(), NumpyScript()] if is_first else [NumpyScript(), script()]))
    assert [cause.sentence for cause in diagnosis.causes] == []
    assert diagnosis.is_equal


# Mistakes that change how the script computes


class DoubledLoss(NumpyScript):
    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(outputs, labels)
        return 1.3 * loss, 1.3 * gradient


class Gelu(NumpyScript):
    def activate(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x * expit(x))


class ZeroGradMissing(NumpyScript):
    total: Arrays  # gradients of all steps so far

    def change_gradients(self, step: int, gradients: Arrays) -> Arrays:
        self.total = {name: gradient + (self.total[name] if step > 1 else 0) for name, gradient in gradients.items()}
        return self.total


class NotDivided(NumpyScript):
    def accumulate(self, gradients: list[Arrays]) -> Arrays:  # type: ignore[override]
        return {name: np.sum([gradient[name] for gradient in gradients], axis=0) for name in gradients[0]}


class NotAveraged(NumpyScript):
    def reduce(self, local: list[Arrays]) -> Arrays:  # type: ignore[override]
        return {name: np.sum([gradient[name] for gradient in local], axis=0) for name in local[0]}


class Lossy(NumpyScript):
    def reduce(self, local: list[Arrays]) -> Arrays:  # type: ignore[override]
        return local[0]


class ClippedPerVariable(NumpyScript):
    def clip(self, gradients: Arrays) -> Arrays:
        factors = {name: min(1, 0.1 / (float(np.linalg.norm(x)) + 1e-6)) for name, x in gradients.items()}
        return {name: gradient * factors[name] for name, gradient in gradients.items()}


class NotClipped(NumpyScript):
    def clip(self, gradients: Arrays) -> Arrays:
        return gradients


class CoupledDecay(NumpyScript):
    def change_gradients(self, step: int, gradients: Arrays) -> Arrays:
        return gradients

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        self.optimizer = "adam"
        super().update(step, weights, slots, gradients)
        self.optimizer = "adamw"


class NoDecay(NumpyScript):
    def find_decay(self, name: str) -> float:
        return 0.0


class EpsilonOfKeras(NumpyScript):
    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        self.epsilon = 1e-3
        super().update(step, weights, slots, gradients)
        self.epsilon = 1e-8


class RateInMomentum(NumpyScript):
    """Keras's SGD: the momentum sums gradients that are already multiplied by the rate of their step."""

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        rates, self.rates = self.rates, None
        factor = rates[step - 1] / self.rate if rates else 1.0
        super().update(step, weights, slots, {name: factor * gradient for name, gradient in gradients.items()})
        self.rates = rates


class LostState(NumpyScript):
    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        if step == 3:
            for name in slots:
                slots[name] = np.zeros_like(slots[name])
        super().update(step, weights, slots, gradients)


class DoubleSoftmax(NumpyScript):
    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(softmax(outputs, 1), labels)
        return loss, gradient


class Summed(NumpyScript):
    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(outputs, labels)
        return loss * len(labels), gradient * len(labels)


class BfloatLayer(NumpyScript):
    def forward(self, weights: Arrays, x: np.ndarray) -> Arrays:
        calls = super().forward(weights, x)
        rounded = {name: (array.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, array in calls.items()}
        return {**rounded, "fc1/input": x}


class BfloatDoubledLoss(DoubledLoss, BfloatLayer):
    pass


def test_another_loss_is_found_in_bfloat16(tmp_path: Path) -> None:
    """A loss that is 1.3 times as large has no rounding error of 30 %."""
    flags: dict[str, object] = {"autocast": "bfloat16"}
    diagnosis = diagnose(tmp_path, BfloatLayer(flags=flags), BfloatDoubledLoss(flags=flags))
    (stage,) = [stage for stage in diagnosis.stages if stage.name == "loss"]
    assert diagnosis.precision == "bfloat16"
    assert stage.checks[0].begins_here


class BadUpdate(NumpyScript):
    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        super().update(step, weights, slots, {name: x for name, x in gradients.items() if name != "fc1.bias"})


def prepare(change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> NumpyScript:
    return NumpyScript(batches=[change(x, y) for x, y in draw_batches()])


SEED_2 = draw_weights(2)
SHUFFLED = [draw_batches()[step] for step in (1, 2, 0)]
FIRST = {name: 2 * array if name == "fc1.weight" else array for name, array in draw_weights().items()}
TWO_RANKS = {"ranks": 2, "batches": draw_batches(examples=13)}

MISTAKES: dict[str, tuple[str, NumpyScript, NumpyScript]] = {
    "rate": ("learning_rate", NumpyScript(), NumpyScript(rate=0.02)),
    "rate scaled by world size": ("learning_rate_scaled", NumpyScript(), NumpyScript(rate=0.02, ranks=2)),
    "scheduler twice": (
        "scheduler_stepped_twice", NumpyScript(rates=SCHEDULE), NumpyScript(rates=[0.01, 0.006, 0.002])
    ),
    "scheduler late or seldom": (
        "updates_per_schedule_step", NumpyScript(rates=SCHEDULE), NumpyScript(rates=[SCHEDULE[0], *SCHEDULE[:-1]])
    ),
    "scheduler first": ("schedule_early", NumpyScript(rates=SCHEDULE), NumpyScript(rates=SCHEDULE[1:])),
    "no scheduler": ("no_schedule", NumpyScript(rates=SCHEDULE), NumpyScript()),
    "epsilon": ("epsilon", NumpyScript(), NumpyScript(epsilon=1e-3)),
    "betas": ("betas", NumpyScript(), NumpyScript(betas=(0.9, 0.99))),
    "nesterov": ("nesterov", NumpyScript(optimizer="sgd", nesterov=True), NumpyScript(optimizer="sgd")),
    "momentum": ("momentum", NumpyScript(optimizer="sgd"), NumpyScript(optimizer="sgd", momentum=0.5)),
    "decay coupled": ("weight_decay_coupled", NumpyScript(), NumpyScript(optimizer="adam")),
    "decay": ("weight_decay", NumpyScript(decay=0.1), NumpyScript(decay=0.01)),
    "decay on biases": ("weight_decay_on_biases", NumpyScript(undecayed=("fc1.bias", "fc2.bias")), NumpyScript()),
    "other optimizer": ("optimizer", NumpyScript(), NumpyScript(optimizer="sgd")),
    "frozen": ("not_trained", NumpyScript(), NumpyScript(frozen=("fc2.weight", "fc2.bias"))),
    "head missing": ("missing_in_optimizer", NumpyScript(), NumpyScript(missing=("fc2.weight", "fc2.bias"))),
    "smoothing": ("label_smoothing", NumpyScript(), NumpyScript(smoothing=0.1)),
    "declared smoothing": (
        "label_smoothing", NumpyScript(), NumpyScript(smoothing=0.1, loss_arguments={"label_smoothing": 0.1})
    ),
    "double softmax": ("double_softmax", NumpyScript(), DoubleSoftmax()),
    "sum": ("loss_reduction", NumpyScript(), Summed()),
    "sum by the script": (
        "loss_reduction", NumpyScript(), Summed(framework="tensorflow", loss_arguments={"reduction": None})
    ),
    "activation": ("activation", NumpyScript(), Gelu()),
    "zero_grad": ("zero_grad_missing", NumpyScript(optimizer="sgd"), ZeroGradMissing(optimizer="sgd")),
    "not divided": ("accumulation_not_divided", NumpyScript(), NotDivided(micro_batches=4)),
    "not averaged": ("not_averaged", NumpyScript(), NotAveraged(ranks=2)),
    "rank missing": ("missing_gradient", NumpyScript(), Lossy(ranks=2)),
    "mean of means": ("mean_of_means", NumpyScript(batches=draw_batches(examples=13)), NumpyScript(**TWO_RANKS)),  # type: ignore[arg-type]
    "per variable": ("clipped_per_variable", NumpyScript(max_norm=0.1), ClippedPerVariable(max_norm=0.1)),
    "not clipped": ("not_clipped", NumpyScript(max_norm=0.1), NotClipped(max_norm=0.1)),
    "clipping": ("not_clipped", NumpyScript(max_norm=0.1), NumpyScript()),
    "hidden decay": ("weight_decay_coupled", NumpyScript(), CoupledDecay()),
    "hidden lack of decay": ("no_weight_decay", NumpyScript(decay=0.1), NoDecay(decay=0.1)),
    "hidden epsilon": ("epsilon", NumpyScript(), EpsilonOfKeras()),
    "seed": ("other_weights", NumpyScript(), NumpyScript(weights=SEED_2)),
    "scaled weight": ("scaled_weights", NumpyScript(), NumpyScript(weights=FIRST)),
    "rate in the momentum": (
        "rate_inside_velocity",
        NumpyScript(optimizer="sgd", decay=0.0, rates=SCHEDULE),
        RateInMomentum("tensorflow", "sgd", decay=0.0, rates=SCHEDULE),
    ),
    "other data": ("other_examples", NumpyScript(), NumpyScript(batches=draw_batches(seed=1))),
    "order": ("order_of_examples", NumpyScript(), NumpyScript(batches=SHUFFLED)),
    "batch size": ("batch_size", NumpyScript(), NumpyScript(batches=draw_batches(examples=8))),
    "batch size and accumulation": (
        "batch_size", NumpyScript(micro_batches=2), NumpyScript(batches=draw_batches(examples=8))
    ),
    "accumulation": (
        "accumulation_steps", NumpyScript(), NumpyScript(micro_batches=2, batches=draw_batches(examples=24))
    ),
    "scale": ("scaled_inputs", NumpyScript(), prepare(lambda x, y: (x * np.float32(255), y))),
    "labels of one class": ("other_values", NumpyScript(), prepare(lambda x, y: (x, np.where(y == 1, 2, y)))),
    "approximation": (
        "activation",
        NumpyScript(extra_layers=({**GELU, "attributes": {"approximate": "none"}},)),  # type: ignore[typeddict-item]
        NumpyScript(extra_layers=({**GELU, "attributes": {"approximate": "tanh"}},)),  # type: ignore[typeddict-item]
    ),
    "labels": ("labels_shifted", prepare(lambda x, y: (x, y // 2)), prepare(lambda x, y: (x, y // 2 + 1))),
    "evaluation mode": (
        "evaluation_mode",
        NumpyScript(extra_layers=({**DROPOUT, "training": True},)),  # type: ignore[typeddict-item]
        NumpyScript(extra_layers=(DROPOUT,), training=False),  # type: ignore[arg-type]
    ),
    "smoothing of losses whose sum the script divides": (
        "label_smoothing", NumpyScript(), NumpyScript(smoothing=0.1, loss_arguments={"reduction": "sum"})
    ),
    "precision": ("precision", NumpyScript(), BfloatLayer(flags={"autocast": "bfloat16"})),
    "rounded layer": ("lower_precision", NumpyScript(), BfloatLayer()),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes(name: str, tmp_path: Path) -> None:
    cause, a, b = MISTAKES[name]
    diagnosis = diagnose(tmp_path, a, b)
    shown = [(known.cause, known.stage, known.sentence) for known in diagnosis.causes]
    assert [known.cause for known in diagnosis.causes][:1] == [cause], shown
    assert {known.cause for known in diagnosis.causes} == {cause}, shown
    assert not diagnosis.is_equal


@pytest.mark.parametrize(("script", "is_explained"), [(DoubledLoss, False), (Gelu, True)])
def test_the_package_that_differs_is_named(tmp_path: Path, script: type[NumpyScript], is_explained: bool) -> None:
    """A cause that the scripts confirm does not come from a package."""
    a, b = NumpyScript().write(tmp_path / "a"), script().write(tmp_path / "b")
    for path, version in ((a, "2.13.0"), (b, "2.14.1")):
        facts = json.loads((path / RECORD).read_text())
        facts["environment"]["versions"] |= {"torch": version, "numpy": version}
        (path / RECORD).write_text(json.dumps(facts))
    cause = diagnose_records(a, b).causes[0]
    assert cause.confirmed == is_explained
    assert cause.sentence.endswith("; it may come from torch 2.13.0 in A and 2.14.1 in B") != is_explained


def test_an_activity_regularizer_is_named_with_the_loss(tmp_path: Path) -> None:
    layer: dict = {**DROPOUT, "kind": "Dense", "path": "hidden", "attributes": {"activity_regularizer": [0.0, 0.1]}}
    layers = {"extra_layers": (layer,)}
    a, b = NumpyScript("tensorflow", **layers), DoubledLoss("tensorflow", **layers)  # type: ignore[arg-type]
    causes = diagnose(tmp_path, a, b).causes
    assert any("and the activity regularizer of hidden" in cause.sentence for cause in causes), causes


class OneHotLabels(NumpyScript):
    """A script whose loss function receives one-hot labels."""

    def _compute_rank(self, *args: Any) -> Any:
        arrays, *others = super()._compute_rank(*args)
        one_hot = {name: np.eye(3, dtype=np.float32)[x] for name, x in arrays.items() if "/label/" in name}
        return arrays | one_hot, *others


@pytest.mark.parametrize(
    ("cause", "script"), [("double_softmax", DoubleSoftmax), ("loss_reduction", Summed), ("activation", Gelu)]
)
@pytest.mark.parametrize("old", [NumpyScript, OneHotLabels])
def test_mistakes_are_found_though_other_elements_are_dropped(
    cause: str, script: type[NumpyScript], old: type[NumpyScript], tmp_path: Path
) -> None:
    """The formula of the loss, and layers before the dropout, do not depend on the masks."""
    dropout: dict = {**DROPOUT, "training": True}
    a, b = (kind(extra_layers=(dropout,)) for kind in (old, script))  # type: ignore[arg-type]
    assert {known.cause for known in diagnose(tmp_path, a, b).causes} == {cause}


@pytest.mark.parametrize(("a", "b"), [("ctc_loss", "keras.losses.CTC"), ("kl_div", "keras.losses.KLDivergence")])
def test_a_loss_function_has_one_kind_in_both_frameworks(a: str, b: str) -> None:
    kinds = {read_loss_settings({"name": name, "arguments": {}})["kind"] for name in (a, b)}
    assert len(kinds) == 1


class NoisyBiases(NumpyScript):
    """A script with biases whose gradients hold rounding errors only, in all elements or in all but two of them."""

    seed = 0

    def change_gradients(self, step: int, gradients: Arrays) -> Arrays:
        noise = 2.0**-27 * np.random.default_rng([self.seed, step]).integers(1, 5, 11)
        large = np.array([30.0, -25.0, *[0.0] * 6])
        return gradients | {"fc1.bias": large + 2e4 * noise[:8] * (large == 0), "fc2.bias": noise[8:]}


class OtherNoise(NoisyBiases):
    seed = 1


def test_rounding_errors_of_biases_are_no_cause(tmp_path: Path) -> None:
    a, b = NoisyBiases("tensorflow", "adam", decay=0.0), OtherNoise("torch", "adam", decay=0.0)
    assert [(cause.cause, cause.sentence) for cause in diagnose(tmp_path, a, b).causes] == []


def test_an_epsilon_of_the_size_of_the_gradients_is_a_cause(tmp_path: Path) -> None:
    a, b = (NumpyScript(framework, epsilon=1e-4, weights=NO_BIASES) for framework in ("torch", "tensorflow"))
    causes = diagnose(tmp_path, a, b).causes
    assert [cause.cause for cause in causes] == ["epsilon_place"]
    assert causes[0].sentence.endswith("which changes B's first update by 1.8e-01 of its norm")


class CutInputs(NumpyScript):
    """A script that passes all but the last element of each example of a batch to its model."""

    def _compute_rank(self, weights: Any, inputs: np.ndarray, labels: np.ndarray) -> Any:
        arrays, *others = super()._compute_rank(weights, inputs * (np.arange(inputs.shape[1]) < 4), labels)
        return arrays | {"batch/0/input/0": inputs[:, :-1]}, *others


class SplitInputs(CutInputs):
    """A script whose model receives the last two elements of each example also apart from the others."""

    def _compute_rank(self, *args: Any) -> Any:
        arrays, *others = NumpyScript._compute_rank(self, *args)
        inputs = arrays["batch/0/input/0"]
        return arrays | {"batch/0/input/0": inputs[:, :-1], "batch/0/input/1": inputs[:, -2:]}, *others


def diagnose_follower(tmp_path: Path, follower: NumpyScript) -> Diagnosis:
    """Compare a script with one that followed its record."""
    a, b = NumpyScript().write(tmp_path / "a"), follower.write(tmp_path / "b")
    facts = json.loads((b / RECORD).read_text())
    (b / RECORD).write_text(json.dumps({**facts, "follows": open_record(a).ranks[0].hash_first_step()}))
    return diagnose_records(a, b)


@pytest.mark.parametrize(("settings", "causes"), [({}, []), ({"decay": 0.1}, ["weight_decay"])])
def test_other_arrays_of_batches_are_accepted_if_losses_and_gradients_are_equal(
    settings: dict[str, float], causes: list[str], tmp_path: Path
) -> None:
    diagnosis = diagnose_follower(tmp_path, SplitInputs(**settings))  # type: ignore[arg-type]
    assert [cause.cause for cause in diagnosis.causes] == causes
    data = next(stage for stage in diagnosis.stages if stage.name == "data")
    assert data.note.startswith("the losses and gradients do not depend on what differs: ")


class LengthsOutsideOfTheModel(SplitInputs):
    """A script that uses an array of its batch outside of its model."""

    def _compute_rank(self, *args: Any) -> Any:
        arrays, *others = NumpyScript._compute_rank(self, *args)
        inputs = arrays["batch/0/input/0"]
        return arrays | {"batch/0/input/0": inputs[:, :-1], "batch/0/other/1": inputs[:, -2:]}, *others


def test_an_array_that_a_script_has_outside_of_its_model_is_not_missing(tmp_path: Path) -> None:
    a, b = SplitInputs(), LengthsOutsideOfTheModel(decay=0.1)
    assert [cause.cause for cause in diagnose(tmp_path, a, b).causes] == ["weight_decay"]


def test_other_arrays_of_batches_are_a_cause_if_the_gradients_differ(tmp_path: Path) -> None:
    diagnosis = diagnose_follower(tmp_path, SplitInputs(smoothing=0.1))
    assert "missing_array" in {cause.cause for cause in diagnosis.causes}


@pytest.mark.parametrize("step", [1, 2])
def test_other_batches_of_any_step_are_a_cause(step: int, tmp_path: Path) -> None:
    """The equal loss of the first step says nothing of those of a later one."""
    batches = draw_batches()
    batches[step - 1] = draw_batches(seed=1)[step - 1]
    causes = {cause.cause for cause in diagnose_follower(tmp_path, NumpyScript(batches=batches, decay=0.1)).causes}
    assert causes == {"other_examples", "weight_decay"}


def test_a_script_that_cuts_the_batches_of_the_record_is_not_compared(tmp_path: Path) -> None:
    diagnosis = diagnose_follower(tmp_path, CutInputs(decay=0.1))
    assert [cause.cause for cause in diagnosis.causes] == ["weight_decay"]
    stage = next(stage for stage in diagnosis.omitted_stages if stage.name == "data")
    assert "[12, 4] of [12, 5] in input 0: recorder.batches(...) returns" in stage.note


def test_a_script_that_averages_the_losses_itself_may_ignore_labels_itself(tmp_path: Path) -> None:
    a, b = NumpyScript(loss_arguments={"reduction": "none"}), NumpyScript(loss_arguments={"ignore_index": 0})
    stages = {stage.name: stage for stage in diagnose(tmp_path, a, b).stages}
    assert stages["hyperparameters"].causes == []


def test_moving_statistics_do_not_explain_another_loss() -> None:
    stages = [Stage("loss"), Stage("state")]
    stages[0].add_cause("loss_function", "b", "loss", "from equal outputs B computes 2 times A's loss", confirmed=False)
    stages[1].add_cause("biased_variance", "b", "norm", "one divides by n - 1")
    _drop_needless_causes(SimpleNamespace(stages=stages, update_causes=frozenset()))  # type: ignore[arg-type]
    assert [cause.cause for stage in stages for cause in stage.causes] == ["loss_function", "biased_variance"]
    headline = Diagnosis(titles={"a": "A", "b": "B"}, stages=stages).headline
    assert headline == "A and B differ: from equal outputs B computes 2 times A's loss (not confirmed)"


def test_rows_that_only_one_script_clips_explain_no_difference_before_the_update() -> None:
    stages = [Stage("activations"), Stage("reduction")]
    stages[0].add_cause("missing_operation", "b", "input of fc", "B does not compute add")
    stages[1].add_cause("clipped_per_row", "a", "embedding", "A clips each row of the sparse gradient")
    _drop_needless_causes(SimpleNamespace(stages=stages, update_causes=frozenset()))  # type: ignore[arg-type]
    assert [cause.cause for stage in stages for cause in stage.causes] == ["missing_operation", "clipped_per_row"]


def test_settings_of_the_update_explain_no_difference_of_the_first_loss() -> None:
    stages = [Stage("hyperparameters"), Stage("loss"), Stage("state")]
    stages[0].add_cause("no_schedule", "b", "learning rate", "the rate does not change")
    stages[1].add_cause("loss_function", "b", "loss", "from equal outputs B computes 2 times A's loss", confirmed=False)
    stages[2].add_cause("unexplained", "b", "weight", "step 2: weight differs", confirmed=False)
    pair = SimpleNamespace(stages=stages, update_causes=frozenset({"no_schedule"}))
    _drop_needless_causes(pair)  # type: ignore[arg-type]
    assert [cause.cause for stage in stages for cause in stage.causes] == ["no_schedule", "loss_function"]


def test_causes_of_the_loss_explain_no_activations() -> None:
    stages = [Stage("hyperparameters"), Stage("activations"), Stage("loss")]
    stages[0].add_cause("decay_in_loss", "b", "fc1", "the regularizer of fc1 is none in A")
    stages[1].add_cause("operation", "b", "input of fc2", "A computes add, relu, and B relu, add", confirmed=False)
    stages[2].add_cause("loss_reduction", "b", "loss", "the loss of A is a mean")
    _drop_needless_causes(SimpleNamespace(stages=stages, update_causes=frozenset()))  # type: ignore[arg-type]
    assert [cause.cause for cause in stages[1].causes] == ["operation"]


@pytest.mark.parametrize("confirmed", [False, True])
def test_other_data_of_a_later_step_follow_from_other_gradients(confirmed: bool) -> None:
    stages = [Stage("data"), Stage("gradients")]
    stages[0].add_cause("other_inputs_of_call", "b", "input 0", "step 3: the call receives other values", confirmed)
    stages[1].add_cause("gradient", "b", "fc1", "step 1: fc1 differs", confirmed=False)
    _drop_needless_causes(SimpleNamespace(stages=stages, update_causes=frozenset()))  # type: ignore[arg-type]
    assert len(stages[0].causes) == confirmed


class WithinLayer(NumpyScript):
    """A script whose first layer is of its own class, and computes the activation, too."""

    def forward(self, weights: Arrays, x: np.ndarray) -> Arrays:
        calls = super().forward(weights, x)
        return {**calls, "fc1/output": calls["fc2/input"]}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_an_activation_within_a_layer_is_no_difference(is_reversed: bool, tmp_path: Path) -> None:
    layer: LayerFacts = {
        "kind": "ReLU", "path": "fc1.act", "attributes": {}, "variables": {}, "unflattened_shape": None,
        "composite": None, "training": True,
    }  # fmt: skip
    scripts = WithinLayer(extra_layers=(layer,)), NumpyScript(smoothing=0.1, loss_arguments={"label_smoothing": 0.1})
    causes = diagnose(tmp_path, *(scripts[::-1] if is_reversed else scripts)).causes
    assert [cause.cause for cause in causes] == ["label_smoothing"]


class RowsOfEmbedding(NumpyScript):
    """A script with a row of weights whose gradient is 0 after the first step, up to `noise`, as of an embedding."""

    noise, shift = 0.0, 0.0

    def change_gradients(self, step: int, gradients: Arrays) -> Arrays:
        return {
            name: np.concatenate([gradient[:-1], np.full_like(gradient[-1:], self.noise)])
            if step > 1 and name == "fc1.weight"
            else gradient
            for name, gradient in gradients.items()
        }

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        super().update(step, weights, slots, gradients)
        weights["fc1.weight"][-1] += self.shift * (step > 1)


class ShiftedRows(RowsOfEmbedding):
    noise, shift = 1e-10, 0.01


def test_rows_without_a_gradient_are_compared(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, RowsOfEmbedding(), ShiftedRows())
    state = next(stage for stage in diagnosis.stages if stage.name == "state")
    differing = [
        check.tensor.partition(":")[0] for check in state.checks if check.differs and "fc1.weight" in check.tensor
    ]
    assert differing == ["step 2"]  # step 3 inherits it


@pytest.mark.parametrize("version", [1, 2])
def test_steps_without_gradients_of_single_processes_are_noted(version: int, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, NumpyScript(), NumpyScript(ranks=2, format=version))
    note = next(stage.note for stage in diagnosis.stages if stage.name == "reduction")
    assert ("is compared in the first update only" in note) == (version == 2)
