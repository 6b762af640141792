from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau

from common.config.schedules import PlateauSettings
from common.training.plateau import update_plateau
from common.training.state import PlateauValues

BASE = 0.3


def make_settings(**keys: Any) -> PlateauSettings:
    defaults = {
        **{"factor": 0.1, "patience": 10, "threshold": 1e-4, "threshold_mode": "relative"},
        **{"cooldown": 0, "min_factor": 0.0, "metric": "loss"},
    }
    return PlateauSettings("plateau", 0, 1, None, 1, **{**defaults, **keys})


def follow(settings: PlateauSettings, values: list[float]) -> list[float]:
    """Return the factor after each evaluation."""
    plateau: PlateauValues | None = None
    factors = []
    for value in values:
        plateau = update_plateau(settings, plateau, value, settings.metric != "loss")
        factors.append(plateau["factor"])
    return factors


@pytest.mark.slow
@given(
    values=st.lists(st.one_of(st.integers(1, 9).map(float), st.just(float("nan"))), min_size=1, max_size=40),
    factor=st.floats(0.1, 0.9),
    patience=st.integers(0, 4),
    threshold=st.sampled_from([0.0, 1e-4, 0.3]),
    mode=st.sampled_from(["relative", "absolute"]),
    cooldown=st.integers(0, 3),
    minimum=st.sampled_from([0.0, 0.3]),
    metric=st.sampled_from(["loss", "accuracy"]),
)
def test_reduce_lr_on_plateau_of_pytorch(
    values: list[float],
    factor: float,
    patience: int,
    threshold: float,
    mode: str,
    cooldown: int,
    minimum: float,
    metric: str,
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    scheduler = ReduceLROnPlateau(
        optimizer,
        "min" if metric == "loss" else "max",
        factor,
        patience,
        threshold,
        "rel" if mode == "relative" else "abs",
        cooldown,
        BASE * minimum,
        eps=0,
    )
    expected = []
    for value in values:
        scheduler.step(value)
        expected.append(optimizer.param_groups[0]["lr"] / BASE)
    settings = make_settings(
        **{"factor": factor, "patience": patience, "threshold": threshold, "threshold_mode": mode},
        **{"cooldown": cooldown, "min_factor": minimum, "metric": metric},
    )
    assert follow(settings, values) == pytest.approx(expected, rel=1e-12)


def test_the_factor_falls_after_patience_plus_one_evaluations() -> None:
    assert follow(make_settings(patience=2), [1.0, 1.0, 1.0, 1.0, 1.0]) == [1.0, 1.0, 1.0, 0.1, 0.1]
