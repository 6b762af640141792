"""A run resumed from a checkpoint, by any framework and strategy, has the curve of an uninterrupted run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.compare.verdict import Tolerance, compare_runs
from common.config.compose import load_config
from common.training.rows import read_rows
from common.training.schedule import compute_learning_rate
from tests.conftest import ROOT, SMALL_IMAGES, SMALL_MODEL, in_matrix, selected_values

Train = Callable[..., Path]

IMAGES = (*SMALL_IMAGES, "schedule=linear")
TEXT = ("model=bert_tiny", "data.train_examples=300", "data.validation_examples=60", *SMALL_MODEL)
SERVERS = "strategy=parameter_server strategy.workers=2 strategy.parameter_servers=2 strategy.max_staleness=0"
HOPS = (
    ("torch", "strategy=ddp strategy.replicas=2"),
    ("tf", "strategy=mirrored strategy.replicas=2"),
    ("tf", "strategy=multiworker strategy.workers=2"),
    ("torch", "strategy=dp strategy.replicas=4"),
)
OTHER_HOPS = (
    ("tf", SERVERS),
    ("torch", SERVERS),
    ("torch", "strategy=allreduce strategy.replicas=3"),
    ("tf", "strategy=central_storage strategy.replicas=2"),
)
OPTIMIZERS = {
    "adamw": (),
    "adam": ("optimizer=adam",),
    "sgd": ("optimizer=sgd", "optimizer.momentum=0.9", "optimizer.max_grad_norm=0.3"),
}
TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4), "float64": Tolerance(loss=1e-9, grad_norm=1e-9)}
EXACT = {
    "torch-single": "strategy=single",
    "torch-ddp": "strategy=ddp strategy.replicas=2",
    "tf-single": "strategy=single",
}


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """A function that runs the training command and returns the run directory."""
    base = tmp_path_factory.mktemp("resumed")

    def run(name: str, framework: str, *overrides: str, **variables: str) -> Path:
        corpus = () if "model=bert_tiny" in overrides else IMAGES
        command = [sys.executable, "-m", f"{framework}_impl.train", *corpus, *overrides]
        command += [f"run_dir={base / name}", f"cache_dir={base / 'cache'}"]
        environment = {"TF_DETERMINISTIC_OPS": "1", "PYTHONPATH": str(ROOT), **os.environ, **variables}
        done = subprocess.run(command, cwd=base, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return base / name

    run("cache", "torch", "train.steps=1")
    return run


def assert_hops_change_nothing(
    train: Train, name: str, hops: tuple[tuple[str, str], ...], steps: int, *overrides: str
) -> tuple[Path, Path]:
    """Check that a run resumed with another framework and strategy after each `steps` has the curve of torch single.

    The first hop is within the warm-up of the schedule, and the others are within the decay. The tenth batch, the last
    of the epoch, is smaller. Return the directories of the uninterrupted run and of the other one.
    """
    total = steps * len(hops)
    shared = (f"schedule.warmup_steps={steps * 3 // 2}", f"schedule.total_steps={total}", *overrides)
    whole = train(f"{name}-whole", "torch", *shared, f"train.steps={total}")
    hopped = None
    for index, (framework, strategy) in enumerate(hops, 1):
        resume = (f"resume={hopped}",) if hopped else ()
        until = f"train.steps={steps * index}"
        hopped = train(f"{name}-{index}", framework, *shared, until, *strategy.split(), *resume)
    assert hopped is not None
    comparison = compare_runs([whole, hopped], TOLERANCES)
    (pair,) = comparison.pairs
    print(f"{name}: loss {pair.max_loss_difference:.1e}, grad_norm {pair.max_grad_norm_difference:.1e}")
    assert comparison.verdict == "lockstep" and pair.steps == total
    for path in (whole, hopped):
        assert [row["step"] for row in read_rows(path / "metrics.jsonl")] == list(range(1, total + 1))
    tolerance = 1e-5 if pair.a.precision == "float32" else 1e-9
    before, after = (load_file(path / "model" / "model.safetensors") for path in (whole, hopped))
    assert max(float(np.abs(before[name] - after[name]).max()) for name in before) <= tolerance
    return whole, hopped


@pytest.mark.faults
@pytest.mark.parametrize(
    "hops",
    [
        pytest.param((HOPS[0], HOPS[1], HOPS[3]), id="torch-tf-torch"),
        pytest.param(HOPS, id="all", marks=pytest.mark.matrix),
    ],
)
def test_a_run_changes_frameworks_and_strategies(train: Train, hops: tuple[tuple[str, str], ...]) -> None:
    name = f"hops-{len(hops)}"
    _, hopped = assert_hops_change_nothing(train, name, hops, 6, "optimizer.learning_rate=1e-3")
    trainers = json.loads((hopped / "summary.json").read_text())["trained_by"]
    expected = [f"{framework} {strategy.split()[0].partition('=')[2]}" for framework, strategy in hops]
    assert [trainer["trained_by"] for trainer in trainers] == expected
    assert [trainer["step"] for trainer in trainers] == [1 + 6 * index for index in range(len(hops))]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("framework", "strategy", "precision"),
    [
        ("torch", "dp", "float64"),  # CI has jobs of Slurm with ddp
        in_matrix("torch", "ddp", "float64"),
        in_matrix("torch", "ddp", "float32"),
        in_matrix("tf", "mirrored", "float64"),
        in_matrix("tf", "mirrored", "float32"),
    ],
)
def test_a_run_changes_its_number_of_replicas(
    train: Train, tmp_path: Path, framework: str, strategy: str, precision: str
) -> None:
    """The comparison shows the steps of the changes."""
    hops = tuple((framework, f"strategy={strategy} strategy.replicas={replicas}") for replicas in (3, 2, 4))
    runs = assert_hops_change_nothing(train, f"{strategy}-{precision}", hops, 4, f"train.precision={precision}")
    command = [sys.executable, "-m", "common.compare", *map(str, runs), "--check", f"output={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{framework} {strategy} x3→2→4: replicas 3 from step 1, 2 from step 5, 4 from step 9; " in done.stdout
    whole, changed = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert "replicas_changed" not in whole
    assert [tuple(change.values()) for change in changed["replicas_changed"]] == [(1, 3), (5, 2), (9, 4)]
    assert r"2 \u2192 4 replicas" in (tmp_path / "report.html").read_text()


@pytest.mark.bench
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("hops", [HOPS, OTHER_HOPS], ids=["first", "others"])
def test_every_optimizer_in_both_precisions(
    train: Train, optimizer: str, precision: str, hops: tuple[tuple[str, str], ...]
) -> None:
    name = f"{optimizer}-{precision}-{'others' if hops is OTHER_HOPS else 'first'}"
    overrides = (*TEXT, *OPTIMIZERS[optimizer], f"train.precision={precision}")
    assert_hops_change_nothing(train, name, hops, 50, *overrides)


@pytest.mark.faults
@pytest.mark.matrix
def test_into_asynchronous_runs_and_out_of_them(train: Train) -> None:
    """No batch is lost or repeated. A step of an asynchronous run is an update, and each batch makes two."""
    servers = SERVERS.replace("max_staleness=0", "max_staleness=null")
    hops = (("torch", "strategy=ddp"), ("torch", servers), ("tf", servers), ("tf", "strategy=mirrored"))
    resume, steps = "resume=null", 0
    for index, (framework, strategy) in enumerate(hops, 1):
        arguments = (*strategy.split(), "schedule.total_steps=40", f"train.steps={10 * index}", resume)
        last = train(f"asynchronous-{index}", framework, *arguments)
        resume = f"resume={last}"
        rows = read_rows(last / "metrics.jsonl")
        steps += 20 if strategy == servers else 10
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        assert rows[-1]["examples"] == 1437 * index  # a tenth of an epoch is a batch
        if strategy == servers:
            batches = range(10 * index - 9, 10 * index + 1)
            trained = sorted((row["batch"], row["part"]) for row in rows[-20:])
            assert trained == [(batch, part) for batch in batches for part in (0, 1)]
            assert json.loads((last / "summary.json").read_text())["version"] == steps
    rates = [row["learning_rate"] for row in rows[50:]]
    assert rates == [compute_learning_rate(load_config(last / "config.yaml"), step) for step in range(31, 41)]


def make_dropout_overrides(name: str) -> tuple[str, str]:
    """Return the dropout settings of a run.

    The generators of native dropout must continue from their saved state. Aligned masks depend only on the step.
    """
    return ("model.dropout=0.1", f"model.dropout_semantics={'aligned' if name == 'torch-ddp' else 'native'}")


@pytest.fixture(scope="module")
def resumed(train: Train, request: pytest.FixtureRequest) -> dict[str, tuple[Path, Path]]:
    """Uninterrupted runs, each with a run that is resumed from its checkpoint of step 3."""
    names = sorted({"torch-ddp"} | EXACT.keys() & selected_values(request, "name"))

    def pair(name: str) -> tuple[Path, Path]:
        framework = name.partition("-")[0]
        shared = (*EXACT[name].split(), "train.steps=8", "train.log_every=1", *make_dropout_overrides(name))
        whole = train(f"{name}-whole", framework, *shared, "train.checkpoint_every=3", "train.keep_checkpoints=9")
        checkpoint = whole / "checkpoints" / "step-00000003"
        return whole, train(f"{name}-resumed", framework, *shared, f"resume={checkpoint}")

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(pair, names), strict=True))


def read_curve(path: Path) -> list[dict[str, Any]]:
    """Return the rows without their times and without the mark of the first row after a start."""
    rows = read_rows(path / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in ("seconds", "trained_by")} for row in rows]


@pytest.mark.faults
@pytest.mark.parametrize("name", ["torch-ddp", "tf-single", in_matrix("torch-single")])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(resumed: dict[str, tuple[Path, Path]], name: str) -> None:
    """The runs have dropout."""
    whole, other = resumed[name]
    assert read_curve(other) == read_curve(whole)
    for file in ("model.safetensors", "optimizer.safetensors"):
        before, after = (load_file(path / "checkpoints" / "step-00000008" / file) for path in (whole, other))
        assert before.keys() == after.keys()
        assert not [key for key in before if not np.array_equal(before[key], after[key])]
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == [
        f"step-0000000{step}" for step in (3, 6, 8)
    ]


# In all Python processes of a run, each rank writes the steps at which it takes part in a checkpoint.
RECORD_SAVES = """
import os
from common.training.loop import Loop

save = Loop.save

def save_and_record(self):
    if self.position != self.saved_position:
        with open(f"{os.environ['SAVES']}/{os.getpid()}.steps", "a") as file:
            print(self.position.step, file=file)
    save(self)

Loop.save = save_and_record
"""


@pytest.mark.faults
def test_checkpoints_by_the_clock(train: Train, resumed: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    """All ranks save after the same steps. The curve stays bit for bit the same, also when resumed from such a step."""
    whole, _ = resumed["torch-ddp"]
    (tmp_path / "sitecustomize.py").write_text(RECORD_SAVES)
    shared = (*EXACT["torch-ddp"].split(), "train.steps=8", "train.log_every=1", *make_dropout_overrides("torch-ddp"))
    timer = ("train.checkpoint_every=null", "train.checkpoint_seconds=1e-6", "train.keep_checkpoints=9")
    variables = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "SAVES": str(tmp_path)}
    timed = train("timed", "torch", *shared, *timer, **variables)
    names = sorted(path.name for path in (timed / "checkpoints").iterdir())
    steps = [int(name.removeprefix("step-")) for name in names]
    assert len(steps) > 2 and steps[-1] == 8
    rank_steps = [[int(line) for line in path.read_text().split()] for path in tmp_path.glob("*.steps")]
    assert rank_steps == [steps, steps]
    other = train("timed-resumed", "torch", *shared, f"resume={timed / 'checkpoints' / names[0]}")
    assert read_curve(timed) == read_curve(other) == read_curve(whole)
