import json
import re
import shutil
from pathlib import Path

import pytest

from common.config import compose as configs
from common.config.layout_optimizers import MuonSettings
from common.config.schema import Config
from common.data.text.token_cache import TokenCache
from common.errors import UserError
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext, open_context
from common.run.inputs import PREPARED, PreparedInputs, open_inputs
from common.run.prepare import is_complete, prepare_inputs, prepare_restart, prepare_run
from common.training.state import Position
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import MakeRun, save_step

FACTS = {"framework": "torch", "strategy": "ddp", "replicas": 2, "status": "completed"}


def test_prepare_is_idempotent(small_config: MakeConfig) -> None:
    _, first = prepare_inputs(small_config(), None)
    config = small_config()
    stamps = {path: path.stat().st_mtime_ns for path in Path(config.cache_dir).rglob("*") if path.is_file()}
    _, prepared = prepare_inputs(config, None)
    cache, initial = prepared.cache, prepared.initial
    assert isinstance(cache, TokenCache)
    assert (cache.fingerprint, initial.fingerprint) == (first.cache.fingerprint, first.initial.fingerprint)
    assert stamps == {path: path.stat().st_mtime_ns for path in Path(config.cache_dir).rglob("*") if path.is_file()}
    assert initial.hf_config["vocab_size"] == cache.vocabulary
    assert initial.hf_config["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
    assert (initial.directory / "tokenizer.json").read_bytes() == (
        cache.tokenizer_directory / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("overrides", "steps", "total"),
    [
        (["train.steps=9"], 9, 9),
        (["train.steps=9", "schedule.total_steps=20"], 9, 20),
        (["train.epochs=2", "train.global_batch_size=32"], 4, 4),  # an epoch has 60 examples: 32 and 28
        (["train.epochs=3", "train.global_batch_size=30", "schedule.total_steps=5"], 6, 5),
        # Three virtual epochs have 96 examples.
        (["train.epochs=3", "train.global_batch_size=32", "train.virtual_epoch_examples=32"], 4, 4),
    ],
)
def test_the_steps_that_epochs_are(small_config: MakeConfig, overrides: list[str], steps: int, total: int) -> None:
    config, _ = prepare_inputs(small_config(*overrides), None)
    assert (config.train.steps, config.train.epochs, config.schedule.total_steps) == (steps, None, total)
    again, _ = prepare_inputs(small_config(*overrides), None)
    again, _ = prepare_inputs(again, None)
    assert again == config


def forbid_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise an error if a file is read to verify its checksum."""

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("common.data.atomic_directory.compute_checksum", fail)


@pytest.mark.parametrize("overrides", [[], ["model=convnet"]])
def test_processes_open_what_the_command_prepared_without_verifying_it(
    make_config: MakeConfig,
    small_config: MakeConfig,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
) -> None:
    context = prepare_run((make_config if overrides else small_config)(*overrides), "torch", run_dir)
    config, prepared = context.config, context.inputs
    forbid_checksums(monkeypatch)
    with pytest.raises(AssertionError, match="is read again"):
        prepare_inputs(config, run_dir)
    loaded = configs.load_config(run_dir / "config.yaml")
    again = open_inputs(loaded, run_dir)
    assert loaded == config
    assert again.fingerprints == prepared.fingerprints
    assert again.start == Position()
    assert (again.initial, again.checkpoint, again.cache.classes) == (prepared.initial, None, prepared.cache.classes)
    assert len(again.cache.train) == len(prepared.cache.train)


def test_processes_open_the_checkpoint_without_verifying_it(
    make_run: MakeRun, small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run("run")
    context = prepare_run(small_config(f"run_dir={run_dir}", "resume=auto"), "torch", run_dir)
    config, prepared = context.config, context.inputs
    forbid_checksums(monkeypatch)
    again = open_inputs(config, run_dir)
    assert again.fingerprints == prepared.fingerprints
    assert again.checkpoint == prepared.checkpoint and again.start.step == 4
    assert again.fingerprints["checkpoint"] is not None


def test_what_was_prepared_must_not_change(config: Config, run_dir: Path) -> None:
    prepared = prepare_run(config, "torch", run_dir).inputs
    places = json.loads((run_dir / PREPARED).read_text())
    places["fingerprints"]["data"] = "another"
    (run_dir / PREPARED).write_text(json.dumps(places))
    with pytest.raises(AssertionError, match="the prepared inputs have changed"):
        open_inputs(config, run_dir)
    shutil.rmtree(prepared.cache.directory)
    with pytest.raises(UserError, match=r"start the command again to rebuild it$"):
        open_inputs(config, run_dir)


def test_a_host_after_the_first_opens_the_chiefs_checkpoint(make_run: MakeRun, small_config: MakeConfig) -> None:
    first = make_run("run")
    beside = first.with_name("run-node1")
    beside.mkdir()
    prepared = prepare_run(small_config(f"run_dir={first}", "resume=auto"), "torch", beside, 1).inputs
    assert prepared.checkpoint is not None and prepared.checkpoint.directory.parents[1] == first
    assert not (beside / "checkpoints").exists()


@pytest.mark.slow
def test_a_host_after_the_first_does_not_copy_what_is_resumed(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path
) -> None:
    first = make_run("first")
    fingerprints = []
    for node, name in ((0, "second"), (1, "second-node1")):
        (tmp_path / name).mkdir()
        config = small_config(f"run_dir={tmp_path / 'second'}", f"resume={first}")
        fingerprints.append(prepare_run(config, "torch", tmp_path / name, node).inputs.fingerprints)
        assert (tmp_path / name / "checkpoints").exists() == (node == 0)
    assert fingerprints[0] == fingerprints[1]


def test_before_a_restart_the_newest_checkpoint_is_found(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path
) -> None:
    run_dir = make_run("run")
    config = small_config(f"run_dir={run_dir}")
    context = open_context(run_dir, "torch", is_chief=True)
    prepare_restart(context)
    assert open_inputs(config, run_dir).start.step == 4
    (run_dir / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"")
    prepare_restart(context)
    assert open_inputs(config, run_dir).start.step == 2
    shutil.rmtree(run_dir / "checkpoints")
    prepare_restart(context)
    assert open_inputs(config, run_dir).start == Position()


@pytest.mark.slow
def test_a_restart_does_not_need_the_checkpoint_that_the_run_started_from(
    make_run: MakeRun, small_config: MakeConfig
) -> None:
    """An evaluation may have changed the checkpoint's state.json, or the checkpoint may have been removed."""
    run_dir = make_run("run")
    shutil.rmtree(run_dir / "checkpoints" / "step-00000002")
    context = prepare_run(small_config(f"run_dir={run_dir}", "resume=auto"), "torch", run_dir)
    config = context.config
    assert context.inputs.start.step == 4
    checkpoints = CheckpointWriter(context)
    for step in (4, 6):
        save_step(checkpoints, step, 0.25)
    checkpoints.close()
    prepare_restart(context)
    assert open_inputs(config, run_dir).start.step == 6
    shutil.rmtree(run_dir / "checkpoints" / "step-00000006")
    prepare_restart(context)
    assert open_inputs(config, run_dir).start.validation == {"loss": 0.25, "accuracy": 0.5}


@pytest.mark.slow
def test_new_data_does_not_bring_a_new_tokenizer(make_run: MakeRun, small_config: MakeConfig) -> None:
    run_dir = make_run("run")
    _, other = prepare_inputs(small_config("data.seed=1"), None)
    changed = small_config(f"run_dir={run_dir}", "resume=auto", "data.seed=1", "data.allow_change=true")
    _, prepared = prepare_inputs(changed, run_dir)
    assert prepared.checkpoint is not None

    def vocabulary(inputs: PreparedInputs) -> str:
        return (inputs.initial.directory / "vocab.txt").read_text()

    assert vocabulary(prepared) == (prepared.checkpoint.directory / "vocab.txt").read_text() != vocabulary(other)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], []),
        (["train.global_batch_size=61"], ["train.global_batch_size=61: more than the 60 training examples"]),
        (["schedule.warmup_steps=300"], ["schedule.warmup_steps=300: the run has 300 steps"]),
        (["train.epochs=2"], ["train.epochs=2: 4 steps"]),
    ],
)
def test_what_is_seldom_meant_is_said(
    small_config: MakeConfig, caplog: pytest.LogCaptureFixture, overrides: list[str], expected: list[str]
) -> None:
    with caplog.at_level("INFO", "lockstep"):
        prepare_inputs(small_config(*overrides), None)
    messages = [line for line in caplog.messages if not line.startswith("building")]
    assert len(messages) == len(expected) and all(map(str.startswith, messages, expected)), messages


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["total_steps=10", "warmup_steps=20"], "schedule.warmup_steps=20: schedule.total_steps=10 leaves no step af"),
        (["every=3", "warmup_steps=20"], "schedule.warmup_steps=20: must be a multiple of schedule.every=3"),
        (
            ["warmup_start=0.1", "warmup_steps=0"],
            "schedule.warmup_start=0.1: needs schedule.warmup_steps of at le",
        ),
    ],
)
def test_a_warm_up_that_does_not_fit_the_schedule_is_refused(
    small_config: MakeConfig, overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        prepare_inputs(small_config(*(f"schedule.{override}" for override in overrides)), None)


@pytest.mark.slow
def test_a_run_is_complete_once_its_summary_says_so(
    make_run: MakeRun, small_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = make_run("run")

    def complete(steps: int) -> bool:
        config = small_config(f"run_dir={run_dir}", f"train.steps={steps}", "schedule.total_steps=300")
        return is_complete(RunContext(config, "torch", prepare_inputs(config, run_dir)[1]))

    (run_dir / "summary.json").write_text(json.dumps({**FACTS, "status": "completed"}))
    assert (complete(4), complete(5)) == (True, False)
    (run_dir / "summary.json").write_text(json.dumps({**FACTS, "status": "interrupted"}))
    assert not complete(4)
    (run_dir / "summary.json").write_text("{")
    assert not complete(4) and caplog.messages[-1].endswith("; writing it again")
    (run_dir / "summary.json").unlink()
    assert not complete(4)


def test_layouts_of_keras_are_those_of_the_semantics(small_config: MakeConfig) -> None:
    copied = ("optimizer=muon", "++optimizer.keras_layouts={classifier.weight: transpose 0 1}")
    for semantics in ("aligned", "native"):  # as if another run's config had been taken over
        config, _ = prepare_inputs(small_config(*copied, f"optimizer.semantics={semantics}"), None)
        assert isinstance(config.optimizer, MuonSettings) and config.optimizer.keras_layouts == {}
    config, _ = prepare_inputs(small_config(*copied, "optimizer.semantics=keras"), None)
    assert isinstance(config.optimizer, MuonSettings)
    assert config.optimizer.keras_layouts["classifier.weight"] == "transpose 1 0"
