"""Metrics: their values by their definitions, undefined values, and functions of the user."""

import logging
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.metric_checks import check_metrics
from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.data.batches import GlobalBatch
from common.data.cache import Cache
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.splits.multi_output_split import MultiOutputSplit, split_outputs
from common.errors import UserError
from common.metrics.class_metrics import compute_binary_metric, compute_class_metric
from common.metrics.compute import check_functions, check_predictions, compute_metrics
from common.metrics.number_metrics import compute_number_metric
from common.metrics.predictions import Predictions
from common.metrics.token_metrics import compute_bleu
from tests.conftest import MakeConfig


def make_predictions(labels: object, outputs: object, kind: str = "outputs") -> Predictions:
    labels = np.asarray(labels)
    return Predictions(kind, np.arange(len(labels)), labels, np.asarray(outputs, np.float64))


def count(labels: np.ndarray, classes: np.ndarray, c: int) -> tuple[int, int, int]:
    """Return the true positives, the false positives and the false negatives of a class."""
    return (
        int(((labels == c) & (classes == c)).sum()),
        int(((labels != c) & (classes == c)).sum()),
        int(((labels == c) & (classes != c)).sum()),
    )


def divide(a: float, b: float) -> float:
    return a / b if b else 0.0


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@pytest.mark.slow
@settings(max_examples=12)
@given(pairs)
def test_macro_averages_over_the_classes_that_occur(pairs: list[tuple[int, int]]) -> None:
    labels, classes = np.array(pairs).T
    counts = [count(labels, classes, c) for c in sorted({*labels.tolist(), *classes.tolist()})]
    expected = {
        "precision": np.mean([divide(tp, tp + fp) for tp, fp, _ in counts]),
        "recall": np.mean([divide(tp, tp + fn) for tp, _, fn in counts]),
        "f1": np.mean([divide(2 * tp, 2 * tp + fp + fn) for tp, fp, fn in counts]),
        "dice": np.mean([divide(2 * tp, 2 * tp + fp + fn) for tp, fp, fn in counts]),
        "iou": np.mean([divide(tp, tp + fp + fn) for tp, fp, fn in counts]),
    }
    logits = np.eye(4)[classes]
    for name, value in expected.items():
        for predictions in (make_predictions(labels, classes, "classes"), make_predictions(labels, logits)):
            assert compute_class_metric(name, predictions) == pytest.approx(value, abs=1e-14), name


def area(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of pairs of a positive and a negative example in the right order."""
    differences = scores[labels][:, None] - scores[~labels][None]
    return float(((differences > 0) + (differences == 0) / 2).mean())


def test_auc_of_one_class_against_the_rest() -> None:
    random = np.random.default_rng(0)
    labels, logits = random.integers(0, 3, 40), random.normal(size=(40, 4))  # class 3 does not occur
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = float(np.mean([area(labels == c, probabilities[:, c]) for c in range(3)]))
    assert compute_class_metric("auc", make_predictions(labels, logits)) == pytest.approx(expected, abs=1e-14)
    expected = area(labels == 1, logits[:, 0])
    assert compute_binary_metric("auc", make_predictions(labels == 1, logits[:, :1])) == pytest.approx(expected)


def test_top5() -> None:
    logits = np.tile(np.arange(7.0), (7, 1))  # the class 6 first
    assert compute_class_metric("top5", make_predictions(np.arange(7), logits)) == 5 / 7


def test_positions_without_a_label_do_not_count() -> None:
    labels, classes = np.array([[0, 1, -1], [1, -1, -100]]), np.array([[0, 1, 0], [0, 0, 0]])
    full = make_predictions([0, 1, 1], [0, 1, 0], "classes")
    for name in ("f1", "matthews", "iou"):
        assert compute_class_metric(name, make_predictions(labels, classes, "classes")) == compute_class_metric(
            name, full
        )


def test_ignored_labels_do_not_count(make_config: MakeConfig) -> None:
    labels, classes = np.array([[0, 1, 255], [2, 255, 1]]), np.array([[0, 1, 0], [1, 2, 1]])
    counted = labels != 255
    expected = compute_class_metric("f1", make_predictions(labels[counted], classes[counted], "classes"))
    config = make_config("metrics=[f1]", "task.ignore_label=255")
    assert compute_metrics(config, {"": make_predictions(labels, classes, "classes")}) == {"f1": expected}
    answers, logits = np.array([[1, 0], [-1, 1], [0, -1], [1, 1]]), np.array([[1, 2], [3, 4], [5, -1], [-1, 1]])
    config = make_config("task=binary", "model=convnet", "data=digits", "metrics=[recall,auc]", "task.ignore_label=-1")
    values = compute_metrics(config, {"": make_predictions(answers, logits)})
    areas = [
        area(np.array([True, False, True]), np.array([1, 5, -1])),
        area(np.array([False, True, True]), logits[[0, 1, 3], 1]),
    ]
    assert values == {"recall": (1 / 2 + 1) / 2, "auc": np.mean(areas)}


def count_matches(predicted: list[int], expected: list[int], length: int) -> tuple[int, int]:
    """Return how many n-grams of a length are in the expected tokens too, and how many there are."""
    a, b = (
        Counter(tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1))
        for tokens in (predicted, expected)
    )
    return (a & b).total(), a.total()


def test_bleu_by_its_definition(make_config: MakeConfig) -> None:
    labels = np.array([[5, 6, 7, 8, 9, 5, 6], [1, 2, 3, 4, 4, -1, -1]])
    classes = np.array([[5, 6, 7, 8, 9, 9, 6], [1, 2, 3, 4, 1, 7, 7]])
    counted = [
        (row[kept].tolist(), tokens[kept].tolist())
        for row, tokens, kept in zip(classes, labels, labels >= 0, strict=True)
    ]
    matches = [np.sum([count_matches(*pair, length) for pair in counted], 0) for length in range(1, 5)]
    expected = 100 * float(np.prod([found / total for found, total in matches]) ** 0.25)  # both have the same length
    config = make_config("task=language_model", "metrics=[bleu]")
    assert compute_metrics(config, {"": make_predictions(labels, classes, "classes")})["bleu"] == pytest.approx(
        expected
    )
    logits = np.eye(10)[classes]
    assert compute_bleu(make_predictions(labels, logits)) == pytest.approx(expected)
    assert compute_bleu(make_predictions(labels, labels, "classes")) == pytest.approx(100)
    with pytest.raises(ValueError, match="^all labels are ignored$"):
        compute_bleu(make_predictions(np.full((2, 3), -100), np.zeros((2, 3)), "classes"))


def test_bleu_needs_tokens_and_its_package(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    split = ArraySplit({"x": Column(np.zeros((2, 1), np.float32))}, Column(np.array([0, 1], np.int32)))
    with pytest.raises(UserError, match=r"^metrics=\[bleu\]: needs several labels for each example"):
        check_predictions(make_config("metrics=[bleu]"), Cache(Path(), "", split, split, []))
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setattr("common.config.metric_checks.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^metrics=\[bleu\]: sacrebleu is not installed; pip install 'lockstep\[sac"):
        check_metrics(make_config("metrics=[bleu]"))


def test_poisson_predicts_logarithms(make_config: MakeConfig) -> None:
    config = make_config("task=regression", "model=convnet", "data=digits", "metrics=[mae]", "task.loss=poisson")
    assert compute_metrics(config, {"": make_predictions([2.0, 1.0], [np.log(3.0), 0.0])}) == {
        "mae": pytest.approx(0.5)
    }


def test_probabilities_of_classes_as_labels() -> None:
    soft = make_predictions(np.array([[0.9, 0.1], [0.2, 0.8]]), [[1, 0], [2, 1]])
    assert compute_class_metric("recall", soft) == 0.5


def test_questions_are_averaged_and_pixels_are_not() -> None:
    labels, logits = np.array([[1, 0], [1, 1], [0, 1]]), np.array([[1.0, -1], [-1, 1], [-1, 1]])
    assert compute_binary_metric("f1", make_predictions(labels, logits)) == pytest.approx((2 / 3 + 1) / 2)
    assert compute_binary_metric("recall", make_predictions(labels[:, 0], logits[:, 0])) == 0.5
    pixels = make_predictions(labels[:, :, None], logits[:, :, None])
    assert compute_binary_metric("iou", pixels) == 3 / 4
    assert compute_binary_metric("dice", pixels) == pytest.approx(6 / 7)


def test_metrics_of_numbers() -> None:
    random = np.random.default_rng(1)
    labels, outputs = random.normal(size=(20, 2)), random.normal(size=(20, 2))
    predictions = make_predictions(labels, outputs)
    residual, total = ((labels - outputs) ** 2).sum(0), ((labels - labels.mean(0)) ** 2).sum(0)
    ranks = [array.argsort(0).argsort(0) for array in (labels, outputs)]
    assert compute_number_metric("mae", predictions) == pytest.approx(np.abs(labels - outputs).mean())
    assert compute_number_metric("r2", predictions) == pytest.approx((1 - residual / total).mean())
    correlations = [np.corrcoef(labels[:, i], outputs[:, i])[0, 1] for i in range(2)]
    assert compute_number_metric("pearson", predictions) == pytest.approx(np.mean(correlations))
    correlations = [np.corrcoef(ranks[0][:, i], ranks[1][:, i])[0, 1] for i in range(2)]
    assert compute_number_metric("spearman", predictions) == pytest.approx(np.mean(correlations))


def test_a_metric_that_is_not_defined_is_nan_and_said(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config("metrics=[auc,f1]")
    with caplog.at_level(logging.WARNING, "lockstep"):
        values = compute_metrics(config, {"": make_predictions([1, 1], [[0, 1], [1, 0]])})
    assert np.isnan(values["auc"]) and values["f1"] == pytest.approx(1 / 3)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("metrics=[auc]: is not defined for these predictions (Only one class is")
    values = compute_metrics(config, {"": make_predictions([1, 0], [[np.nan, 1], [1, 0]])})
    assert np.isnan([*values.values()]).all(), "the class of logits that are nan means nothing"


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("user_metrics")
    monkeypatch.setitem(sys.modules, "user_metrics", module)
    return module


def test_a_function_of_the_user(
    make_config: MakeConfig, user_module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    user_module.count_right = lambda predictions, labels: (predictions.argmax(-1) == labels).sum()  # type: ignore[attr-defined]
    user_module.broken = lambda predictions, labels: predictions["a"]  # type: ignore[attr-defined]
    config = make_config("metrics=['user_metrics:count_right','user_metrics:broken']")
    check_functions(config)
    with caplog.at_level(logging.WARNING, "lockstep"):
        values = compute_metrics(config, {"": make_predictions([1, 1], [[0, 1], [1, 0]])})
    assert values["count_right"] == 1 and np.isnan(values["broken"])
    assert caplog.messages[0].startswith("metrics=[user_metrics:broken]: raised IndexError: ")
    with pytest.raises(UserError, match=r"^metrics=user_metrics:missing: user_metrics has no function missing$"):
        check_functions(make_config("metrics=['user_metrics:missing']"))


def test_metrics_of_several_outputs(make_config: MakeConfig, caplog: pytest.LogCaptureFixture) -> None:
    config = make_outputs(make_config, "metrics=[mask.f1,age.mae,age.r2]")
    predictions = {
        "mask": make_predictions([[0, 1], [-100, -100]], np.eye(2)[[[0, 1], [1, 1]]].reshape(2, -1)),
        "age": make_predictions([2.0, 1.0], [2.5, 1.5]),
    }
    assert compute_metrics(config, predictions) == {"mask_f1": 1.0, "age_mae": 0.5, "age_r2": 0.0}
    predictions["mask"] = make_predictions([-100, -100], [[0, 1], [1, 0]])
    with caplog.at_level(logging.WARNING, "lockstep"):
        assert np.isnan(compute_metrics(config, predictions)["mask_f1"])
    assert caplog.messages[0].startswith("metrics=[mask.f1]: ") and caplog.messages[0].endswith("; its value is null")


def test_bleu_of_an_output_with_one_label(make_config: MakeConfig) -> None:
    pytest.importorskip("sacrebleu")
    config = make_outputs(make_config, "metrics=[mask.bleu,group.bleu]")
    assert isinstance(config.task, MultiOutputSettings)
    labels = {"mask": np.zeros((2, 5), np.int32), "group": np.zeros(2, np.int32), "age": np.zeros(2, np.float32)}
    columns = {name: Column(array) for name, array in labels.items()}
    split = MultiOutputSplit({}, columns["mask"], None, config.task, split_outputs(config.task, columns))
    with pytest.raises(UserError, match=r"^metrics=\[group.bleu\]: needs several labels for each example"):
        check_predictions(config, Cache(Path(), "", split, split, []))


def test_labels_of_outputs_are_gathered_without_inputs(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_outputs(make_config, "metrics=[]").task
    assert isinstance(task, MultiOutputSettings)
    columns = {"mask": Column(np.eye(3, dtype=np.int32)), "group": Column(np.arange(3, dtype=np.int32))}
    columns["age"] = Column(np.full(3, 0.5, np.float32))
    split = MultiOutputSplit({}, columns["mask"], None, task, split_outputs(task, columns))
    expected = split.gather(np.arange(3), np.arange(3))["labels"]
    monkeypatch.setattr(MultiOutputSplit, "gather", None)
    np.testing.assert_array_equal(GlobalBatch(1, np.arange(3), split, "global").labels, expected)


def make_outputs(make_config: MakeConfig, override: str) -> Config:
    return make_config("task=multi_output", "task.outputs={mask: {}, group: {}, age: {kind: regression}}", override)


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["metrics=[auc]"], "metrics: auc needs all outputs of the model"),
        (["train.predictions=true"], "metrics: train.predictions=true needs all outputs of the model"),
        (["metrics=[f1]"], None),
    ],
)
def test_outputs_of_ragged_labels_are_refused(
    make_config: MakeConfig, overrides: list[str], refused: str | None
) -> None:
    config = make_config(*overrides)
    labels = Column(np.array([0, 1, 2], np.int32), np.array([0, 1, 3]))
    split = ArraySplit({"x": Column(np.zeros((2, 1), np.float32))}, labels)
    cache = Cache(Path(), "", split, split, [])
    if refused is None:
        check_predictions(config, cache)
    else:
        with pytest.raises(UserError, match=f"^{refused}"):
            check_predictions(config, cache)
