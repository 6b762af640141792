"""Real pretrained weights on real data: all-MiniLM-L6-v2 on 8,330 pairs. Minutes long: `make bench-parity`."""

from pathlib import Path

import pytest

from common.compare.verdict import Tolerance, compare_runs
from tests.parity.conftest import FAULTS, PLAIN, Planned, Runs, train

DATA = Path(__file__).parents[3] / "shared" / "data" / "cad_nli"
EXPERIMENT = (
    "model=minilm",
    "data=files",
    f"data.train={DATA / 'train.jsonl'}",
    f"data.validation={DATA / 'validation.jsonl'}",
    "optimizer=adam",
    "optimizer.learning_rate=3e-5",
    *PLAIN,
)
STEPS = {60: 2e-6, 300: 1e-5}
FAULTY_STEPS = 10

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA}"),
]


@pytest.fixture(scope="module")
def minilm_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """ddp x2 and mirrored x2, 300 steps; and each planted fault for a few steps.

    The mean of replica means shows with uneven shards only: it is planted in mirrored x4 with 30 examples.
    """
    made = Runs(tmp_path_factory.mktemp("minilm"))
    shared = (*EXPERIMENT, f"cache_dir={made.base / 'cache'}")
    planned = {made.path("minilm", name): Planned(name, (*shared, f"train.steps={max(STEPS)}")) for name in PAIR}
    faulty = (*shared, f"train.steps={FAULTY_STEPS}", "train.global_batch_size=30")
    planned[made.path("faulty", "torch-single")] = Planned("torch-single", faulty)
    for fault in FAULTS:
        planned[made.path("faulty", "tf-mirrored-4", fault)] = Planned("tf-mirrored-4", faulty, fault)
    train(planned)
    return made


PAIR = ("torch-ddp-2", "tf-mirrored-2")


@pytest.mark.parametrize("steps", STEPS)
def test_minilm_draws_the_same_curve(minilm_runs: Runs, steps: int) -> None:
    (pair,) = compare_runs(minilm_runs.paths("minilm", PAIR), {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}).pairs
    assert pair.steps == max(STEPS)
    losses = [run.metrics["loss"][:steps] for run in (pair.a, pair.b)]
    worst = abs(losses[0] - losses[1]).max()
    print(f"minilm, {steps} steps: largest loss difference {worst:.3e}, from {losses[0][0]:.4f} to {losses[0][-1]:.4f}")
    assert worst <= STEPS[steps]
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("fault", FAULTS)
def test_minilm_shows_a_planted_fault(minilm_runs: Runs, fault: str) -> None:
    run_dirs = [minilm_runs.path("faulty", "torch-single"), minilm_runs.path("faulty", "tf-mirrored-4", fault)]
    (pair,) = compare_runs(run_dirs, {"float32": Tolerance(loss=STEPS[60], grad_norm=1e-4)}).pairs
    print(
        f"minilm, {fault}: beyond from step {pair.first_step_beyond}, largest difference {pair.max_loss_difference:.3e}"
    )
    assert pair.max_loss_difference is not None and pair.max_loss_difference > STEPS[60]
