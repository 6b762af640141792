"""Real pretrained weights on real data: all-MiniLM-L6-v2 on 8,330 pairs. `make bench-parity` runs it, for minutes."""

from pathlib import Path

import pytest

from common.compare.verdict import RunPair, Tolerance, compare_runs
from tests.parity.conftest import FAULTS, Planned, Runs, train

DATA = Path(__file__).parents[3] / "shared" / "data" / "cad_nli"
EXPERIMENT = (
    "model=minilm",
    "data=files",
    f"data.train={DATA / 'train.jsonl'}",
    f"data.validation={DATA / 'validation.jsonl'}",
    "optimizer=adam",
    "optimizer.learning_rate=3e-5",
)
PAIR = ("torch-ddp-2", "tf-mirrored-2")
UNEVEN = (
    "torch-single",
    "tf-mirrored-4",
)  # with 30 examples, because only uneven shards show the mean of replica means
STEPS = {60: 2e-6, 300: 1e-5}
TOLERANCES = {"float32": Tolerance(loss=2e-6, grad_norm=1e-4), "float64": Tolerance(loss=1e-9, grad_norm=1e-9)}
# After pretraining, LayerNorm divides by variances near 1. An epsilon of 1e-6 then changes the loss by only 5e-7 in 60
# float32 steps, and only float64 distinguishes that from rounding.
FAULT_PRECISION = {fault: "float64" if fault == "layer_norm_epsilon" else "float32" for fault in FAULTS}
FAULTY_STEPS = {"float32": 10, "float64": 4}

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA}"),
]


@pytest.fixture(scope="module")
def minilm_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of ddp x2 and mirrored x2 for 300 steps, and short runs with uneven shards with and without faults."""
    runs = Runs(tmp_path_factory.mktemp("minilm"))
    shared = (*EXPERIMENT, f"cache_dir={runs.base / 'cache'}")
    planned = {runs.path("pair", name): Planned(name, (*shared, f"train.steps={max(STEPS)}")) for name in PAIR}
    for precision, steps in FAULTY_STEPS.items():
        short = (f"train.steps={steps}", "schedule.warmup_steps=0")
        few = (*shared, *short, "train.global_batch_size=30", f"train.precision={precision}")
        for name in UNEVEN:
            planned[runs.path(precision, name)] = Planned(name, few)
        for fault in FAULTS:
            if FAULT_PRECISION[fault] == precision:
                planned[runs.path(precision, FAULTS[fault], fault)] = Planned(FAULTS[fault], few, fault)
    train(planned)
    return runs


@pytest.mark.parametrize("steps", STEPS)
def test_minilm_draws_the_same_curve(minilm_runs: Runs, steps: int) -> None:
    (pair,) = compare_runs(minilm_runs.paths("pair", PAIR), TOLERANCES).pairs
    assert pair.steps == max(STEPS)
    losses = [run.metrics["loss"][:steps] for run in (pair.a, pair.b)]
    worst = abs(losses[0] - losses[1]).max()
    print(f"minilm, {steps} steps: largest loss difference {worst:.1e}, from {losses[0][0]:.4f} to {losses[0][-1]:.4f}")
    assert worst <= STEPS[steps]
    assert pair.a.metrics["loss"][-1] < pair.a.metrics["loss"][0], "the loss does not fall in 300 steps"


def compare_uneven_pair(runs: Runs, precision: str, fault: str | None = None) -> RunPair:
    correct, other = runs.path(precision, UNEVEN[0]), runs.path(precision, FAULTS[fault] if fault else UNEVEN[1], fault)
    (pair,) = compare_runs([correct, other], TOLERANCES).pairs
    difference = f"diverged at step {pair.first_step_beyond}, by {pair.max_loss_difference:.1e}"
    print(f"minilm, {precision}, {fault or 'no fault'}: {difference}")
    return pair


@pytest.mark.parametrize("precision", FAULTY_STEPS)
def test_minilm_draws_the_same_curve_from_uneven_shards(minilm_runs: Runs, precision: str) -> None:
    assert compare_uneven_pair(minilm_runs, precision).verdict == "lockstep"


@pytest.mark.parametrize("fault", FAULTS)
def test_minilm_shows_a_planted_fault(minilm_runs: Runs, fault: str) -> None:
    assert compare_uneven_pair(minilm_runs, FAULT_PRECISION[fault], fault).first_step_beyond is not None
