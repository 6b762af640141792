from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from common.config.keys import RUN, key
from common.config.strategies import DdpSettings, SingleSettings, StrategySettings
from common.data.batches import GlobalBatch
from common.errors import UserError
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, SettingsT, StepResult, Strategy, load_strategy_class
from tests.conftest import MakeConfig


class Idle(Strategy[SettingsT]):
    """A strategy that does nothing and accepts any settings."""

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        yield from ()

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        return Evaluation(0.0, 0.0, 1.0, 1)

    def state(self) -> State:
        return State({}, {})

    def load(self, checkpoint: SavedState) -> None:
        pass

    def report(self) -> dict[str, object]:
        return {}


class IdleDdp(Idle[DdpSettings]):
    """An idle strategy that needs the settings of DDP."""


class DuckTyped:
    """A class that does not inherit from `Strategy`."""


@dataclass(frozen=True)
class ExtensionSettings(StrategySettings):
    sides: ClassVar = {"torch": f"{__name__}:IdleDdp", "tf": f"{__name__}:DuckTyped"}

    twice: bool = key(RUN)


def test_means_of_an_evaluation() -> None:
    evaluation = Evaluation(summed_loss=3.0, summed_metric=9.0, weight=12.0, count=10)
    assert (evaluation.loss, evaluation.metric) == (0.25, 0.75)


def test_the_settings_type_is_the_argument_of_the_base_class() -> None:
    assert (Idle.settings_type, IdleDdp.settings_type) == (StrategySettings, DdpSettings)
    assert type("Derived", (IdleDdp,), {}).settings_type is DdpSettings  # type: ignore[attr-defined]


def test_a_strategy_keeps_its_settings(small_config: MakeConfig) -> None:
    config = small_config("strategy=ddp", "strategy.replicas=3", "strategy.accumulate=2")
    strategy = IdleDdp(config, rank=1)
    assert (strategy.settings.accumulate, strategy.world_size, strategy.is_chief) == (2, 3, False)
    assert IdleDdp(config, rank=0).is_chief and isinstance(Idle(config, rank=0).settings, DdpSettings)


def test_settings_of_another_strategy_are_refused(small_config: MakeConfig) -> None:
    assert isinstance(small_config().strategy, SingleSettings)
    with pytest.raises(UserError, match=r"^strategy=single: its settings are SingleSettings, .* needs DdpSettings$"):
        IdleDdp(small_config(), rank=0)


def test_only_a_subclass_is_loaded(small_config: MakeConfig) -> None:
    config = replace(small_config(), strategy=ExtensionSettings("mine", 2, twice=True))
    assert load_strategy_class(config, "torch") is IdleDdp
    with pytest.raises(UserError, match=r"^strategy=mine: .*:DuckTyped must be a subclass of common\.training\."):
        load_strategy_class(config, "tf")
