import pytest

from common.config.metric_checks import check_metrics
from common.config.metrics import choose_predictions, is_higher_better, list_values
from common.config.validate import check_config
from common.errors import UserError
from tests.conftest import MakeConfig

REGRESSION = ["model=custom", "model.torch=models:build", "data=arrays", "data.train=a.npz", "data.validation=b.npz"]
ALL = (
    "accuracy, f1, precision, recall, auc, matthews, iou, dice, mae, r2, pearson, spearman, top5, bleu, recall_at_1, "
    "recall_at_5, recall_at_10, mean_reciprocal_rank, perplexity"
)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["metrics=[rouge]"], f"metrics=[rouge]: no such metric; there are {ALL} and module:function"),
        (
            ["metrics=[f1,r2]"],
            "metrics=[r2]: does not fit task=classification; choose accuracy, f1, precision, recall, auc, matthews, "
            "iou, dice, top5, bleu, module:function",
        ),
        (
            [*REGRESSION, "task=regression", "metrics=[f1]"],
            "metrics=[f1]: does not fit task=regression; choose mae, r2, pearson, spearman, module:function",
        ),
        (
            [*REGRESSION, "task=language_model", "metrics=[top5]"],
            "metrics=[top5]: does not fit task=language_model; choose accuracy, f1, precision, recall, matthews, iou, "
            "dice, bleu, perplexity, module:function",
        ),
        (["metrics=['m:']"], "metrics=[m:]: must be module:function, such as my_metrics:weighted_f1"),
        (["metrics=['m:loss']"], "metrics=[m:loss]: an evaluation has a value loss already; rename the function"),
        (["metrics=['m:status']"], "metrics=[m:status]: an evaluation has a value status already; rename the function"),
        (["metrics=[f1,f1]"], "metrics: has f1 twice; remove one, or rename the function"),
        (["metrics=['m:f','n:f']"], "metrics: has f twice; remove one, or rename the function"),
        (
            ["train.early_stopping.metric=f1"],
            "train.early_stopping.metric=f1: not a value of an evaluation of this run; add it with metrics=[f1], or "
            "choose loss, accuracy",
        ),
        (
            ["train.early_stopping.metric=f2", "metrics=[f1]"],
            "train.early_stopping.metric=f2: not a value of an evaluation of this run; choose loss, accuracy, f1, or "
            "add a metric with metrics=[...]",
        ),
        (
            ["schedule=plateau", "schedule.metric=r2", "train.eval_every=1"],
            "schedule.metric=r2: not a value of an evaluation of this run; choose loss, accuracy, or add a metric with "
            "metrics=[...]",
        ),
    ],
)
def test_metrics_that_are_refused(make_config: MakeConfig, overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        check_config(make_config(*overrides))
    assert str(raised.value) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], ""),
        (["metrics=[accuracy]"], ""),
        (["metrics=[accuracy,f1]"], "classes"),
        (["metrics=[f1,auc]"], "outputs"),
        (["metrics=['m:f']"], "outputs"),
        (["train.predictions=true"], "outputs"),
        ([*REGRESSION, "task=binary", "metrics=[f1]"], "outputs"),
        ([*REGRESSION, "task=regression", "metrics=[r2]"], "outputs"),
        ([*REGRESSION, "task=language_model", "metrics=[perplexity]"], ""),
        ([*REGRESSION, "task=language_model", "metrics=['m:f']", "train.predictions=true"], "classes"),
    ],
)
def test_only_what_is_needed_is_gathered(make_config: MakeConfig, overrides: list[str], expected: str) -> None:
    config = make_config(*overrides)
    check_config(config)
    assert choose_predictions(config) == expected


OUTPUTS = [
    *REGRESSION,
    "task=multi_output",
    "task.outputs={mask: {}, age: {kind: regression}, a: {kind: binary}, a_b: {}}",
]
NAMES = "mask, age, a, a_b"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "metrics=[iou]",
            f"metrics=[iou]: names no output of the task; name one first, such as mask.iou; the outputs are {NAMES}",
        ),
        (
            "metrics=[masc.iou]",
            "metrics=[masc.iou]: names no output of the task; name one first, such as mask.iou; the outputs are "
            f"{NAMES}",
        ),
        (
            "metrics=['m.n:f']",
            "metrics=[m.n:f]: names no output of the task; name one first, such as mask.module:function; the outputs "
            f"are {NAMES}",
        ),
        (
            "metrics=[age.f1]",
            "metrics=[age.f1]: does not fit task.outputs.age.kind=regression; choose age.mae, age.r2, age.pearson, "
            "age.spearman, age.module:function",
        ),
        (
            "metrics=[a.top5]",
            "metrics=[a.top5]: does not fit task.outputs.a.kind=binary; choose a.accuracy, a.f1, a.precision, "
            "a.recall, a.auc, a.matthews, a.iou, a.dice, a.module:function",
        ),
        ("metrics=['mask.:f']", "metrics=[mask.:f]: must be module:function, such as my_metrics:weighted_f1"),
        ("metrics=[mask.]", "metrics=[mask.]: names the output mask without a metric; add one"),
        ("metrics=[mask]", "metrics=[mask]: names the output mask without a metric; add one, such as mask."),
        ("metrics=['mask.m:loss']", "metrics=[mask.m:loss]: an evaluation has a value mask_loss already; rename the"),
        ("metrics=['a.m:b_loss']", "metrics=[a.m:b_loss]: an evaluation has a value a_b_loss already; rename the"),
        ("metrics=['a.m:b_f1',a_b.f1]", "metrics: has a_b_f1 twice; remove one, or rename the function"),
        ("train.early_stopping.metric=mask_iou", "add it with metrics=[mask.iou], or choose loss, mask_loss, "),
        ("train.early_stopping.metric=mask.loss", "choose loss, mask_loss, mask_accuracy, age_loss, "),
        ("train.early_stopping.metric=mask.iou", "write mask_iou, and add it with metrics=[mask.iou]"),
        ("train.early_stopping.metric=mask.accuracy", "write mask_accuracy"),
    ],
)
def test_metrics_of_outputs_that_are_refused(make_config: MakeConfig, override: str, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        check_config(make_config(*OUTPUTS, override))
    assert expected in str(raised.value)


def test_metrics_of_outputs(make_config: MakeConfig) -> None:
    error = "age.tests.unit.common.config.test_metrics:compute_error"
    config = make_config(
        *OUTPUTS, f"metrics=[mask.iou,a.accuracy,age.mae,'{error}']", "train.early_stopping.metric=age_compute_error"
    )
    check_config(config)
    assert choose_predictions(config) == "classes"
    for overrides in (
        ["metrics=[mask.auc]"],
        ["metrics=['mask.m:f']"],
        ["metrics=[mask.iou]", "train.predictions=true"],
    ):
        assert choose_predictions(make_config(*OUTPUTS, *overrides)) == "outputs"
    values = list_values(config)
    assert values[-3:] == ["mask_iou", "age_mae", "age_compute_error"] and values.count("a_accuracy") == 1
    assert [is_higher_better(config, name) for name in values[-3:]] == [True, False, False]
    assert is_higher_better(config, "a_accuracy") and not is_higher_better(config, "age_loss")
    config = make_config(*OUTPUTS, "metrics=[a.accuracy]")
    assert choose_predictions(config) == ""


def test_directions(make_config: MakeConfig) -> None:
    config = make_config("metrics=[f1,'tests.unit.common.config.test_metrics:compute_error','math:gcd']")
    assert list_values(config) == ["loss", "accuracy", "f1", "compute_error", "gcd"]
    assert [is_higher_better(config, name) for name in list_values(config)] == [False, True, True, False, True]
    config = make_config(*REGRESSION, "task=regression", "metrics=[mae,r2]")
    assert list_values(config) == ["loss", "mean_absolute_error", "mae", "r2"]
    assert [is_higher_better(config, name) for name in list_values(config)] == [False, False, False, True]


def compute_error(predictions: object, labels: object) -> float:
    raise NotImplementedError


compute_error.higher_is_better = False  # type: ignore[attr-defined]


def test_a_function_of_an_output_may_be_called_as_a_value_of_the_evaluation(make_config: MakeConfig) -> None:
    check_metrics(make_config(*OUTPUTS, "metrics=['mask.m:duration']"))


def average_accuracy(predictions: object, labels: object) -> float:
    raise NotImplementedError


def test_values_of_two_evaluations_with_one_name(make_config: MakeConfig) -> None:
    overrides = ["metrics=['tests.unit.common.config.test_metrics:average_accuracy']", "ema.decay=0.9"]
    check_config(make_config(*overrides, "train.evaluate_both=true", "train.evaluate_average=true"))
    with pytest.raises(UserError, match="train.evaluate_both=true: an evaluation has a value average_accuracy already"):
        check_config(make_config(*overrides, "train.evaluate_both=true"))
