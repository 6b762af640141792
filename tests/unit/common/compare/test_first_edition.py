"""Tests of run directories that the first edition wrote, compared with each other and with new ones."""

import shutil
from pathlib import Path

import pytest

from common.compare.find import find_newest_runs
from common.compare.runs import load_run
from common.compare.verdict import Comparison, Tolerance, compare_runs
from common.config.compose import save_config
from tests.conftest import ROOT, MakeConfig

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}
TORCH = ROOT / "tests/fixtures/first-edition-torch-ddp"
TF = ROOT / "tests/fixtures/first-edition-tf-multiworker"
EXPERIMENT = (
    "data.train_examples=60",
    "data.validation_examples=12",
    "model.layers=1",
    "model.hidden_size=8",
    "model.heads=2",
    "model.intermediate_size=16",
    "model.max_positions=64",
    "model.max_vocabulary=200",
    "optimizer.learning_rate=2e-4",
    "schedule.warmup_steps=2",
    "schedule.total_steps=12",
    "train.steps=6",
    "train.global_batch_size=8",
    "train.max_length=64",
)


def compare(*runs: Path) -> Comparison:
    return compare_runs(runs, TOLERANCES)


def copy_with_new_config(tmp_path: Path, make_config: MakeConfig, run_dir: Path, *overrides: str) -> Path:
    """Return a copy of a run directory with the config.yaml that today's version writes for the same experiment."""
    copy = tmp_path / f"new-{run_dir.name}"
    shutil.copytree(run_dir, copy, ignore=shutil.ignore_patterns("checkpoints"))
    save_config(make_config(*EXPERIMENT, *overrides), copy / "config.yaml")
    return copy


def test_two_runs_of_the_first_edition_are_in_lockstep() -> None:
    comparison = compare(TORCH, TF)
    assert comparison.verdict == "lockstep" and comparison.notes == []
    assert comparison.sentence.startswith("lockstep: 2 runs agree at all 6 steps: ")
    assert [run.label for run in comparison.runs] == ["torch ddp x2", "tf multiworker x2"]


@pytest.mark.slow
@pytest.mark.parametrize(("run_dir", "strategy"), [(TORCH, "ddp"), (TF, "multiworker")])
@pytest.mark.parametrize("old", [TORCH, TF])
def test_an_old_run_and_a_new_run_are_in_lockstep(
    tmp_path: Path, make_config: MakeConfig, old: Path, run_dir: Path, strategy: str
) -> None:
    new = copy_with_new_config(tmp_path, make_config, run_dir, f"strategy={strategy}", "strategy.replicas=2")
    pair = compare(old, new).pairs[0]
    assert (pair.verdict, pair.reasons, pair.config_differences) == ("lockstep", [], {})


def test_another_seed_is_another_experiment(tmp_path: Path, make_config: MakeConfig) -> None:
    new = copy_with_new_config(tmp_path, make_config, TORCH, "train.seed=1")
    assert compare(TF, new).pairs[0].reasons == ["different configs: train.seed (0 | 1)"]


def test_old_keys_are_read_under_todays_names() -> None:
    torch, tf = load_run(TORCH).config, load_run(TF).config
    assert torch["strategy.kind"] == "ddp" and torch["model.kind"] == "bert" and torch["model.name"] == "bert_tiny"
    assert tf["strategy.replicas"] == 2 and not tf.keys() & {"strategy.workers", "strategy.name", "optimizer.name"}


def test_old_runs_are_found(tmp_path: Path) -> None:
    for run_dir in (TORCH, TF):
        shutil.copytree(run_dir, tmp_path / run_dir.name)
    newest, errors, _ = find_newest_runs(tmp_path)
    assert [path.name for path in newest] == [TORCH.name, TF.name] and errors == []
