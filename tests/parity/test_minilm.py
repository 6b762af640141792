"""Real pretrained weights on real data: all-MiniLM-L6-v2 on 8,330 pairs. Minutes long: `make bench-parity`."""

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
UNEVEN = ("torch-single", "tf-mirrored-4")  # at 30 examples: the mean of replica means shows with uneven shards only
STEPS = {60: 2e-6, 300: 1e-5}
TOLERANCES = {"float32": Tolerance(loss=2e-6, grad_norm=1e-4), "float64": Tolerance(loss=1e-9, grad_norm=1e-9)}
# After pretraining the variances that LayerNorm divides by are about 1: an epsilon of 1e-6 moves the loss by 5e-7 in 60
# float32 steps, which only float64 tells from rounding.
FAULT_PRECISION = {fault: "float64" if fault == "layer_norm_epsilon" else "float32" for fault in FAULTS}
FAULTY_STEPS = {"float32": 10, "float64": 4}

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA}"),
]


@pytest.fixture(scope="module")
def minilm_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """ddp x2 and mirrored x2 for 300 steps; in each precision a few uneven steps, as they should be and with faults."""
    made = Runs(tmp_path_factory.mktemp("minilm"))
    shared = (*EXPERIMENT, f"cache_dir={made.base / 'cache'}")
    planned = {made.path("pair", name): Planned(name, (*shared, f"train.steps={max(STEPS)}")) for name in PAIR}
    for precision, steps in FAULTY_STEPS.items():
        short = (f"train.steps={steps}", "schedule.warmup_steps=0")
        few = (*shared, *short, "train.global_batch_size=30", f"train.precision={precision}")
        for name in UNEVEN:
            planned[made.path(precision, name)] = Planned(name, few)
        for fault in FAULTS:
            if FAULT_PRECISION[fault] == precision:
                planned[made.path(precision, FAULTS[fault], fault)] = Planned(FAULTS[fault], few, fault)
    train(planned)
    return made


@pytest.mark.parametrize("steps", STEPS)
def test_minilm_draws_the_same_curve(minilm_runs: Runs, steps: int) -> None:
    (pair,) = compare_runs(minilm_runs.paths("pair", PAIR), TOLERANCES).pairs
    assert pair.steps == max(STEPS)
    losses = [run.metrics["loss"][:steps] for run in (pair.a, pair.b)]
    worst = abs(losses[0] - losses[1]).max()
    print(f"minilm, {steps} steps: largest loss difference {worst:.1e}, from {losses[0][0]:.4f} to {losses[0][-1]:.4f}")
    assert worst <= STEPS[steps]
    assert pair.a.metrics["loss"][-1] < pair.a.metrics["loss"][0], "it learns, in 300 steps"


def uneven_pair(runs: Runs, precision: str, fault: str | None = None) -> RunPair:
    right, other = runs.path(precision, UNEVEN[0]), runs.path(precision, FAULTS[fault] if fault else UNEVEN[1], fault)
    (pair,) = compare_runs([right, other], TOLERANCES).pairs
    apart = f"apart at step {pair.first_step_beyond}, by {pair.max_loss_difference:.1e}"
    print(f"minilm, {precision}, {fault or 'no fault'}: {apart}")
    return pair


@pytest.mark.parametrize("precision", FAULTY_STEPS)
def test_minilm_draws_the_same_curve_from_uneven_shards(minilm_runs: Runs, precision: str) -> None:
    assert uneven_pair(minilm_runs, precision).verdict == "lockstep"


@pytest.mark.parametrize("fault", FAULTS)
def test_minilm_shows_a_planted_fault(minilm_runs: Runs, fault: str) -> None:
    assert uneven_pair(minilm_runs, FAULT_PRECISION[fault], fault).first_step_beyond is not None
