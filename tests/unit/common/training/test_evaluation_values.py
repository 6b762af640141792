"""The values of an evaluation: the chief's metrics on every rank, the best value, and null for undefined metrics."""

import math
from dataclasses import replace

import numpy as np
import pytest
from typing_extensions import override

from common.config.schema import Config
from common.errors import UserError
from common.metrics.predictions import Predictions
from common.run.checkpoint_state import POSITION_CHECKS
from common.training.evaluation_values import compute_values, format_values, update_best_value
from common.training.rows import select_scalars
from common.training.state import Position
from common.training.strategy import Evaluation
from tests.conftest import MakeConfig
from tests.unit.common.training.test_strategy import Idle

NAN = math.nan


class Rank(Idle):
    """A rank whose chief has computed `shared`."""

    def __init__(self, config: Config, rank: int, shared: list[float]) -> None:
        super().__init__(config, rank)
        self.shared, self.computed = shared, [0.0]

    @override
    def share(self, values: np.ndarray) -> np.ndarray:
        self.computed = values.tolist()
        return np.array(self.shared)


def evaluate(labels: list[int], classes: list[int]) -> Evaluation:
    predictions = Predictions("classes", np.arange(len(labels)), np.array(labels), np.array(classes, np.float64))
    return Evaluation(3.0, 1.5, 3.0, 3, predictions)


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_has_the_values_of_the_chief(make_config: MakeConfig, rank: int) -> None:
    config = make_config("metrics=[accuracy,recall]", "strategy.replicas=1")
    strategy = Rank(config, rank, [0.25])
    evaluation = evaluate([0, 1, 1], [0, 0, 1])
    assert evaluation.predictions is not None
    values = compute_values(config, strategy, evaluation, {"": evaluation.predictions})
    assert values == {"loss": 1.0, "accuracy": 0.5, "recall": 0.25}
    assert strategy.computed == ([0.75] if rank == 0 else [0.0])


def test_without_metrics_nothing_is_shared(make_config: MakeConfig) -> None:
    config = make_config("strategy.replicas=1")
    strategy = Rank(config, 0, [])
    assert compute_values(config, strategy, evaluate([0], [0]), {}).keys() == {"loss", "accuracy"}
    assert strategy.computed == [0.0]


def test_a_strategy_without_predictions_is_named(make_config: MakeConfig) -> None:
    config = make_config("metrics=[f1]", "strategy.replicas=1")
    with pytest.raises(UserError, match="^metrics: strategy=single returns no predictions from its evaluation; remove"):
        compute_values(config, Rank(config, 0, [0.0]), evaluate([0], [0]), {})


def test_an_undefined_metric_is_null_and_no_scalar() -> None:
    row = format_values({"loss": NAN, "accuracy": 0.5, "auc": NAN})
    assert math.isnan(row.pop("loss")) and row == {"accuracy": 0.5, "auc": None}
    assert select_scalars({"loss": 0.1, "count": 3, **row}) == {"validation/loss": 0.1, "validation/accuracy": 0.5}


@pytest.mark.parametrize(
    ("metric", "values", "waited"),
    [
        ("loss", [0.5, 0.4, 0.6], [0, 0, 1]),
        ("f1", [0.5, 0.4, 0.6], [0, 1, 0]),
        ("f1", [NAN, 0.4, NAN, 0.5], [1, 0, 1, 0]),
        ("error", [0.5, 0.4, 0.6], [0, 0, 1]),
    ],
)
def test_the_best_value_in_the_direction_of_the_metric(
    make_config: MakeConfig, metric: str, values: list[float], waited: list[int]
) -> None:
    config, position = follow(make_config, metric), Position()
    for value, expected in zip(values, waited, strict=True):
        update_best_value(config, position, {"loss": 1.0, metric: value})
        assert position.waited == expected
        score = position.to_values().get("score")
        assert (score is None) == (metric == "loss")
        assert all(is_valid(getattr(position, name)) for name, is_valid, _ in POSITION_CHECKS)


def test_another_metric_after_a_resume_starts_anew(make_config: MakeConfig) -> None:
    position = Position()
    for metric, value, best in (("loss", 0.1, 0.1), ("f1", 0.5, -0.5), ("error", 0.3, 0.3), ("error", 0.4, 0.3)):
        update_best_value(follow(make_config, metric), position, {"loss": 1.0, metric: value})
        assert position.best == best


def follow(make_config: MakeConfig, metric: str) -> Config:
    config = make_config("metrics=[f1,'tests.unit.common.training.test_evaluation_values:error']")
    stopping = replace(config.train.early_stopping, metric=metric)
    return replace(config, train=replace(config.train, early_stopping=stopping))


def error(predictions: np.ndarray, labels: np.ndarray) -> float:
    raise NotImplementedError


error.higher_is_better = False  # type: ignore[attr-defined]
