"""Every synchronous strategy in both precisions on both workloads. `make bench-parity` runs it, for minutes."""

import pytest

from tests.parity.conftest import EXPERIMENTS, SINGLES, Planned, Runs, list_pairs, train
from tests.parity.strategies import STRATEGIES
from tests.parity.test_parity import assert_lockstep

EXPERIMENT_NAMES = ("adamw", "adamw64", "dropout", "dropout64", "convnet", "convnet64", "convnet_dropout")
EVERY = dict.fromkeys(EXPERIMENT_NAMES, tuple(STRATEGIES))
EVERY |= {"adam": (*SINGLES, "torch-dp-4", "tf-mirrored-4"), "sgd": SINGLES}

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All strategies in seven experiments, and some in two more."""
    runs = Runs(tmp_path_factory.mktemp("every"))
    cache = f"cache_dir={runs.base / 'cache'}"
    train({runs.path(*key): Planned(key[1], (cache, *EXPERIMENTS[key[0]])) for key in list_pairs(EVERY)})
    return runs


@pytest.mark.parametrize("experiment", EVERY)
def test_every_strategy_draws_the_same_curve(all_runs: Runs, experiment: str) -> None:
    assert_lockstep(all_runs, experiment, EVERY[experiment])
