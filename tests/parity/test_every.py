"""Every synchronous strategy in both precisions on both workloads. Minutes long: `make bench-parity`."""

import pytest

from tests.parity.conftest import EXPERIMENTS, STRATEGIES, Planned, Runs, keys, train
from tests.parity.test_parity import assert_lockstep

EXPERIMENT_NAMES = ("adamw-30", "float64-30", "dropout", "dropout64", "convnet", "convnet64", "convnet_dropout")
EVERY = dict.fromkeys(EXPERIMENT_NAMES, tuple(STRATEGIES))

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All strategies in seven experiments."""
    made = Runs(tmp_path_factory.mktemp("every"))
    cache = f"cache_dir={made.base / 'cache'}"
    train({made.path(*key): Planned(key[1], (cache, *EXPERIMENTS[key[0]])) for key in keys(EVERY)})
    return made


@pytest.mark.parametrize("experiment", EVERY)
def test_every_strategy_draws_the_same_curve(every: Runs, experiment: str) -> None:
    assert_lockstep(every, experiment, EVERY[experiment])
