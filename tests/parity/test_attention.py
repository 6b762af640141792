"""Models with attention layers, dropout and parameters without a gradient have the same curve in both frameworks."""

import pytest

from common.compare.verdict import RunPair, compare_runs
from examples.lstm.data import write
from tests.parity.conftest import Planned, Runs, train
from tests.parity.test_parity import TOLERANCES, find_violations

STRATEGY_PAIR = ("torch-single", "tf-mirrored-2")
FAULT = "native dropout"
SETTINGS = (
    "model=custom",
    "model.torch=tests.parity.attention_torch:build",
    "model.tf=tests.parity.attention_keras:build",
    "+model.arguments.dropout=0.1",
    "data=arrays",
    "train.precision=float64",
    "train.steps=10",
    "train.global_batch_size=31",  # two replicas have uneven shards
    "schedule=constant",
    "optimizer.learning_rate=0.003",
)


@pytest.fixture(scope="module")
def attention_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of each framework, and a run with native dropout."""
    runs = Runs(tmp_path_factory.mktemp("attention"))
    write(runs.base / "data")
    data = [f"data.{name}={runs.base}/data/{name}.npz" for name in ("train", "validation")]
    settings = (f"cache_dir={runs.base / 'cache'}", *SETTINGS, *data)
    planned = {runs.path("attention", strategy): Planned(strategy, settings) for strategy in STRATEGY_PAIR}
    planned[runs.path("attention", STRATEGY_PAIR[0], FAULT)] = Planned(
        STRATEGY_PAIR[0], (*settings, "train.steps=5"), "native_dropout"
    )
    train(planned)
    return runs


def compare(runs: Runs, fault: str | None = None) -> RunPair:
    """Compare the run of TensorFlow with the run of PyTorch, in which a fault may be planted."""
    torch, tf = STRATEGY_PAIR
    (pair,) = compare_runs([runs.path("attention", torch, fault), runs.path("attention", tf)], TOLERANCES).pairs
    return pair


def test_attention_draws_one_curve(attention_runs: Runs) -> None:
    pair = compare(attention_runs)
    assert pair.steps == 10
    assert not find_violations(pair)
    assert abs(pair.evaluation_loss_difference or 0) < 1e-9


def test_native_dropout_is_seen(attention_runs: Runs) -> None:
    assert compare(attention_runs, FAULT).first_step_beyond == 1
