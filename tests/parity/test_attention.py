"""Models with the attention layers of either framework are trained in lockstep, their dropout included."""

import pytest

from common.compare.verdict import RunPair, compare_runs
from examples.lstm.data import write
from tests.parity.conftest import Planned, Runs, train
from tests.parity.test_parity import TOLERANCES, violations

RIGHT = ("torch-single", "tf-mirrored-2")
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
def attentions(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("attention"))
    write(made.base / "data")
    data = [f"data.{name}={made.base}/data/{name}.npz" for name in ("train", "validation")]
    settings = (f"cache_dir={made.base / 'cache'}", *SETTINGS, *data)
    planned = {made.path("attention", strategy): Planned(strategy, settings) for strategy in RIGHT}
    planned[made.path("attention", RIGHT[0], FAULT)] = Planned(RIGHT[0], (*settings, "train.steps=5"), "native_dropout")
    train(planned)
    return made


def compared(runs: Runs, fault: str | None = None) -> RunPair:
    """TensorFlow's run with PyTorch's, in which a fault may be planted."""
    torch, tf = RIGHT
    (pair,) = compare_runs([runs.path("attention", torch, fault), runs.path("attention", tf)], TOLERANCES).pairs
    return pair


def test_attention_draws_one_curve(attentions: Runs) -> None:
    pair = compared(attentions)
    assert pair.steps == 10
    assert not violations(pair)
    assert abs(pair.evaluation_loss_difference or 0) < 1e-9


def test_native_dropout_is_seen(attentions: Runs) -> None:
    assert compared(attentions, FAULT).first_step_beyond == 1
