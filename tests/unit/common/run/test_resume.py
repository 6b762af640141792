import errno
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from common.config import compose as configs
from common.config.keys import CURVE
from common.config.legacy import upgrade_values
from common.config.resolve import resolve_config
from common.config.schema import Config, collect_keys
from common.data import batch_plan
from common.errors import UserError
from common.run.checkpoint import Checkpoint, open_checkpoint
from common.run.context import open_context
from common.run.curve_settings import check_resume, collect_curve_settings
from common.run.prepare import open_run, prepare_inputs
from common.run.preview import describe_plan
from common.run.recorder import Recorder
from common.run.resume import find_checkpoint
from common.run.summary import describe_run, write_summary
from common.training.state import Position, PositionValues
from tests.conftest import ROOT, SMALL_CORPUS, MakeConfig
from tests.unit.common.every_key import CACHE, PAIRS
from tests.unit.common.run.conftest import STEPS, MakeRun, recorded, resume, step

pytestmark = pytest.mark.slow

FIRST_EDITION = ROOT / "tests" / "fixtures" / "first-edition-torch-ddp"
AS_IN_FIRST_EDITION = (
    "model.max_positions=64",
    "train.max_length=64",
    "train.global_batch_size=8",
    "schedule.warmup_steps=2",
    "schedule.total_steps=12",
    "train.steps=12",
    "strategy=ddp",
)


def test_auto_continues_from_the_newest(make_run: MakeRun, small_config: MakeConfig) -> None:
    run_dir = make_run("run")
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto", "strategy=ddp")) == 4
    assert recorded(run_dir) == [[1, 2, 3, 4], [2, 4], [1, 2, 3, 4]]
    assert configs.load_config(run_dir / "config.yaml").strategy.kind == "ddp"


@pytest.mark.parametrize("copies", [0, 3])
def test_a_disk_too_small_for_the_checkpoint_leaves_no_run_directory(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    remaining, copy = [copies], shutil.copyfile

    def copy_to_a_small_disk(source: Path, target: Path, **options: bool) -> None:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(source, target, **options)

    old, new = make_run("old"), tmp_path / "new"
    config = small_config(f"run_dir={new}", f"resume={old}")
    with (
        monkeypatch.context() as patched,
        pytest.raises(UserError, match=r"cannot be written \(No space left") as raised,
    ):
        patched.setattr(shutil, "copyfile", copy_to_a_small_disk)
        resume(config)
    assert str(raised.value).startswith(f"{new}/checkpoints/step-00000004: ") and not new.exists()
    assert resume(config) == 4


def test_auto_passes_over_a_damaged_one(make_run: MakeRun, small_config: MakeConfig) -> None:
    run_dir = make_run("run")
    (run_dir / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"")
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto")) == 2
    assert recorded(run_dir) == [[1, 2], [2], [1, 2]]


def test_a_damaged_row_is_refused_before_the_processes_start(make_run: MakeRun, small_config: MakeConfig) -> None:
    run_dir = make_run("run")
    rows = (run_dir / "metrics.jsonl").read_text().splitlines()
    (run_dir / "metrics.jsonl").write_text("\n".join(["{}", *rows[1:], ""]))
    config = small_config(f"run_dir={run_dir}", "resume=auto")
    with pytest.raises(UserError, match=r"metrics.jsonl:1: a row must be"), open_run(config, "torch"):
        pytest.fail("the command would start processes")


def test_auto_starts_from_the_initial_weights_where_there_is_none(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path
) -> None:
    assert resume(small_config(f"run_dir={tmp_path / 'new'}", "resume=auto")) == 0
    run_dir = make_run("run")
    shutil.rmtree(run_dir / "checkpoints")
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto")) == 0
    assert recorded(run_dir) == [[], [], []]


def test_only_the_files_of_a_checkpoint_are_copied(make_run: MakeRun, small_config: MakeConfig, tmp_path: Path) -> None:
    first = make_run("first")
    (tmp_path / "secret").write_text("secret")
    (first / "checkpoints" / "step-00000004" / "more.txt").symlink_to(tmp_path / "secret")
    assert resume(small_config(f"run_dir={tmp_path / 'second'}", f"resume={first}")) == 4
    assert not (tmp_path / "second" / "checkpoints" / "step-00000004" / "more.txt").exists()
    (first / "evals.jsonl").unlink()
    (first / "evals.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"evals.jsonl is not a regular file; replace it by its content"):
        resume(small_config(f"run_dir={tmp_path / 'third'}", f"resume={first}"))


@pytest.mark.parametrize(
    ("place", "step"), [(".", 4), ("checkpoints/step-00000004", 4), ("checkpoints/step-00000002", 2)]
)
def test_a_path_is_continued_in_a_new_directory(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path, place: str, step: int
) -> None:
    first = make_run("first")
    before = sorted(path.name for path in first.rglob("*"))
    run_dir = tmp_path / "second"
    assert resume(small_config(f"run_dir={run_dir}", f"resume={first / place}")) == step
    assert recorded(run_dir) == [list(range(1, step + 1)), [s for s in STEPS if s <= step], list(range(1, step + 1))]
    assert sorted(path.name for path in first.rglob("*")) == before, "the first run must not change"
    shutil.rmtree(first)
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto")) == step, (
        "the second run must not depend on the first"
    )


def train_further(config: Config, replicas: int, until: int) -> Any:
    """Resume, train up to a step and write the summary. Return its changes of the number of replicas."""
    with open_run(config, "torch") as context:
        run_dir, start = context.run_dir, context.inputs.start
        recorder = Recorder(run_dir, start, "torch single")
        numbers = range(start.step + 1, until + 1)
        recorder.record_steps([step(number, 0.1 * number, replicas=replicas) for number in numbers], [], 1.0)
        recorder.close()
        return write_summary(run_dir, context.config, describe_run(context), "completed", {}).get("replicas_changed")


@pytest.mark.parametrize(("place", "last"), [(".", 4), ("checkpoints/step-00000002", 2)])
def test_where_the_number_of_replicas_changed_is_carried_over(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path, place: str, last: int
) -> None:
    """Steps after the checkpoint do not count, because they are trained again."""
    first, second = make_run("first", replicas=3), tmp_path / "second"
    config = small_config(f"run_dir={second}", f"resume={first / place}")
    assert train_further(config, 2, 6) == [{"step": 1, "replicas": 3}, {"step": last + 1, "replicas": 2}]
    again = small_config(f"run_dir={second}", "resume=auto")
    assert train_further(again, 4, 7) == [{"step": 1, "replicas": 3}, {"step": last + 1, "replicas": 4}]
    assert train_further(again, 3, 7) is None


def test_a_run_that_did_not_record_its_replicas(make_run: MakeRun, small_config: MakeConfig) -> None:
    """Runs of earlier versions did not record it. An unknown number is not reported as a change."""
    assert train_further(small_config(f"run_dir={make_run('run')}", "resume=auto"), 4, 6) is None


def test_a_checkpoint_without_its_run(make_run: MakeRun, small_config: MakeConfig, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.move(make_run("first") / "checkpoints" / "step-00000002", moved)
    run_dir = tmp_path / "second"
    assert resume(small_config(f"run_dir={run_dir}", f"resume={moved}")) == 2
    assert recorded(run_dir) == [[], [], []]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.seed=1"], "train.seed (1, not 0)"),
        (["optimizer.beta1=0.8", "model.layers=2"], "model.layers (2, not 1), optimizer.beta1 (0.8, not 0.9)"),
        (["train.steps=600"], "schedule.total_steps (600, not 300)"),
    ],
)
def test_other_values_are_refused_and_named(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path, overrides: list[str], message: str
) -> None:
    first = make_run("first")
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", f"resume={first}", *overrides))
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "second").exists()


def saved_with(settings: dict[str, object]) -> Checkpoint:
    """Return a checkpoint of a run with these settings, without files on the disk."""
    return Checkpoint(
        Path("step-00000000"),
        {
            "format": 2,
            "position": cast(PositionValues, asdict(Position())),
            "config_fingerprint": "",
            "settings": settings,
            "checksums": {},
        },
    )


@pytest.mark.parametrize("name", collect_keys())
def test_every_key_that_decides_the_curve_is_guarded(name: str) -> None:
    """The scope of a key decides, so a key that is added later is guarded too."""
    config, other = PAIRS[name]
    checkpoint = saved_with(collect_curve_settings(config, CACHE.fingerprint))
    check_resume(config, CACHE, checkpoint)
    if collect_keys()[name].scope is not CURVE:
        check_resume(other, CACHE, checkpoint)
        return
    with pytest.raises(UserError) as raised:
        check_resume(other, CACHE, checkpoint)
    assert f"was trained with other values of {name} (1, not 0); pass the same values, " in str(raised.value)


def test_a_key_that_only_the_checkpoint_has_or_lacks_is_guarded() -> None:
    config, _ = PAIRS["train.seed"]
    saved = collect_curve_settings(config, CACHE.fingerprint)
    with pytest.raises(UserError, match=r"other values of train\.magic \(None, not 3\); pass"):
        check_resume(config, CACHE, saved_with({**saved, "train.magic": 3}))
    del saved["train.seed"]
    with pytest.raises(UserError, match=r"other values of train\.seed \(0, not None\); pass"):
        check_resume(config, CACHE, saved_with(saved))


def test_a_constant_schedule_has_no_length(small_config: MakeConfig) -> None:
    constant = ("schedule=constant", "schedule.warmup_steps=2")
    short, long = (small_config(*constant, f"train.steps={steps}", f"schedule.total_steps={steps}") for steps in (4, 9))
    checkpoint = saved_with(collect_curve_settings(short, CACHE.fingerprint))
    check_resume(long, CACHE, checkpoint)
    linear = small_config("schedule=linear", "schedule.warmup_steps=2", "train.steps=9", "schedule.total_steps=9")
    with pytest.raises(UserError, match=r"schedule.kind \(linear, not constant\), schedule.total_steps \(9, not 4\)"):
        check_resume(linear, CACHE, checkpoint)
    of_linear = saved_with(collect_curve_settings(linear, CACHE.fingerprint))
    longer = small_config("schedule=linear", "schedule.warmup_steps=2", "train.steps=20", "schedule.total_steps=20")
    with pytest.raises(
        UserError, match=r"; with schedule.total_steps=9 the learning rate no longer changes after that step$"
    ):
        check_resume(longer, CACHE, of_linear)


@pytest.mark.parametrize(
    ("kind", "keys", "may_be_longer"),
    [
        ("multi_step", ("schedule.milestones=[2]",), True),
        ("inverse_sqrt", (), True),
        ("plateau", ("train.eval_every=2",), True),
        ("one_cycle", (), False),
        ("polynomial", (), False),
    ],
)
def test_only_a_total_that_the_schedule_uses_is_guarded(
    small_config: MakeConfig, kind: str, keys: tuple[str, ...], may_be_longer: bool
) -> None:
    short, long = (
        small_config(f"schedule={kind}", *keys, f"train.steps={steps}", f"schedule.total_steps={steps}")
        for steps in (4, 9)
    )
    checkpoint = saved_with(collect_curve_settings(short, CACHE.fingerprint))
    if may_be_longer:
        check_resume(long, CACHE, checkpoint)
    else:
        with pytest.raises(UserError, match=r"other values of schedule.total_steps \(9, not 4\)"):
            check_resume(long, CACHE, checkpoint)


@pytest.mark.parametrize(
    ("kind", "added"),
    [("cosine", ("end_factor", "cycles")), ("one_cycle", ("cycle_momentum", "base_momentum", "max_momentum"))],
)
def test_a_schedule_of_earlier_versions_is_the_same_schedule(
    small_config: MakeConfig, tmp_path: Path, kind: str, added: tuple[str, ...]
) -> None:
    config = small_config(f"schedule={kind}", "schedule.warmup_steps=2", "schedule.total_steps=9")
    configs.save_config(config, tmp_path / "config.yaml")
    lines = (tmp_path / "config.yaml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.strip().partition(":")[0] not in added]
    assert len(lines) == len(kept) + len(added)
    (tmp_path / "config.yaml").write_text("".join(kept))
    assert configs.load_config(tmp_path / "config.yaml") == config
    saved = collect_curve_settings(config, CACHE.fingerprint)
    earlier = {name: saved[name] for name in saved if name.removeprefix("schedule.") not in added}
    check_resume(config, CACHE, saved_with(upgrade_values(earlier)))


def test_a_checkpoint_of_images_from_before_transforms_is_continued(make_config: MakeConfig) -> None:
    config = make_config("model=convnet", "data=digits", "schedule.warmup_steps=2", "schedule.total_steps=9")
    saved = collect_curve_settings(config, CACHE.fingerprint)
    earlier = {name: value for name, value in saved.items() if not name.startswith("data.transform")}
    assert len(earlier) == len(saved) - 2
    check_resume(config, CACHE, saved_with(earlier))
    flipped = make_config(
        "model=convnet",
        "data=digits",
        "data.transforms=[horizontal_flip]",
        "schedule.warmup_steps=2",
        "schedule.total_steps=9",
    )
    with pytest.raises(UserError, match=r"other values of data.transforms \(\['horizontal_flip'\], not \[\]\)"):
        check_resume(flipped, CACHE, saved_with(earlier))


def test_more_steps_where_the_schedule_stays(make_run: MakeRun, small_config: MakeConfig, tmp_path: Path) -> None:
    first = make_run("first")
    longer = small_config(
        f"run_dir={tmp_path / 'second'}", f"resume={first}", "train.steps=600", "schedule.total_steps=300"
    )
    assert resume(longer) == 4
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"^train.steps=3: .*-00000004 has already trained 4 steps; raise train.steps$"):
        resume(small_config(f"run_dir={first}", "resume=auto", "train.steps=3", "schedule.total_steps=300"))
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before, (
        "no file of the run may change"
    )


def test_other_data_is_refused_with_both_fingerprints(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path
) -> None:
    first = make_run("first")
    saved = json.loads((first / "checkpoints" / "step-00000004" / "state.json").read_text())["settings"]["data"]
    now = prepare_inputs(small_config("data.seed=1"), None)[1].cache.fingerprint
    other = [f"resume={first}", "data.seed=1"]
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", *other))
    assert saved in str(raised.value) and now in str(raised.value) and saved != now
    assert resume(small_config(f"run_dir={tmp_path / 'second'}", *other, "data.allow_change=true")) == 4


def test_only_the_weights_of_a_checkpoint(make_run: MakeRun, make_config: MakeConfig, tmp_path: Path) -> None:
    """A warm start on newer data is a new run. Its steps and its optimizer start from 0."""
    directory = make_run("first") / "checkpoints" / "step-00000004"
    newer = (*SMALL_CORPUS, "data.seed=1")
    config = make_config("model=pretrained", f"model.checkpoint={directory}", *newer, f"run_dir={tmp_path / 'second'}")
    with open_run(config, "torch") as context:
        run_dir = context.run_dir
        prepared = open_context(run_dir, "torch", is_chief=True).inputs
    assert prepared.checkpoint is None and not (run_dir / "checkpoints").exists()
    saved, weights = open_checkpoint(directory).load().weights, prepared.initial.weights()
    assert saved.keys() == weights.keys()
    assert all(np.array_equal(saved[name], weights[name]) for name in saved)
    tokenizer = prepared.initial.directory / "tokenizer.json"
    assert tokenizer.read_bytes() == (directory / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "nowhere: no such directory; pass a run directory, a checkpoint directory, or auto"),
        ("empty", "empty: has no complete checkpoint; pass another run directory or checkpoint"),
        ("damaged", "model.safetensors does not match its checksum"),
    ],
)
def test_a_path_that_has_none(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path, place: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.move(make_run("first") / "checkpoints" / "step-00000004", tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", f"resume={tmp_path / place}"))
    assert message in str(raised.value)
    assert not (tmp_path / "second").exists()


def test_without_resume_the_runs_own_checkpoint_is_found(make_run: MakeRun, small_config: MakeConfig) -> None:
    """A process that is started again finds the checkpoint of the run without `resume`."""
    run_dir = make_run("run")
    config = small_config()
    checkpoint = find_checkpoint(config, run_dir)
    assert checkpoint is not None and checkpoint.position.step == 4
    assert find_checkpoint(config, None) is None
    other = make_run("other")
    shutil.rmtree(other / "checkpoints" / "step-00000004")
    checkpoint = find_checkpoint(replace(config, resume=str(other)), run_dir)
    assert checkpoint is not None and checkpoint.position.step == 4, (
        "a restarted run must continue from its latest checkpoint"
    )


def test_another_version_of_the_batch_plan_is_refused(
    make_run: MakeRun, small_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_run("first")
    monkeypatch.setattr(batch_plan, "PLAN_VERSION", batch_plan.PLAN_VERSION + 1)
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", f"resume={first}"))
    assert (
        f"order of version {batch_plan.PLAN_VERSION - 1} of the batch plan, and "
        f"this is version {batch_plan.PLAN_VERSION}; finish" in str(raised.value)
    )
    assert not (tmp_path / "second").exists()


# Checkpoints of the first edition, whose batch plan was version 1


@pytest.mark.parametrize("place", [".", "checkpoints/step-00000006"])
@pytest.mark.parametrize("name", ["torch-ddp", "tf-multiworker"])
def test_a_run_of_the_first_edition_is_refused_by_the_version_of_its_plan(
    small_config: MakeConfig, tmp_path: Path, name: str, place: str
) -> None:
    first = FIRST_EDITION.with_name(f"first-edition-{name}")
    directory = first / "checkpoints" / "step-00000006"
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", f"resume={first / place}", *AS_IN_FIRST_EDITION))
    assert str(raised.value) == (
        f"resume={first / place}: {directory} was trained in the order of version 1 of the batch plan, and this is "
        f"version {batch_plan.PLAN_VERSION}; finish that run with the Lockstep that started it, or start a new one "
        f"from its weights with model=pretrained model.checkpoint={directory}"
    )
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("name", ["torch-ddp", "tf-multiworker"])
def test_a_new_run_starts_from_the_weights_of_the_first_edition(make_config: MakeConfig, name: str) -> None:
    directory = FIRST_EDITION.with_name(f"first-edition-{name}") / "checkpoints" / "step-00000006"
    config = make_config("model=pretrained", f"model.checkpoint={directory}", "train.max_length=64", *SMALL_CORPUS)
    weights = prepare_inputs(config, None)[1].initial.weights()
    saved = open_checkpoint(directory).load().weights
    assert saved.keys() == weights.keys()
    assert all(np.array_equal(saved[name], weights[name]) for name in saved)


def test_the_settings_of_the_first_edition_are_read(small_config: MakeConfig) -> None:
    """A run of the first edition could be resumed if the version of its batch plan were the current one."""
    config, prepared = prepare_inputs(small_config(*AS_IN_FIRST_EDITION), None)
    check_resume(config, prepared.cache, first_edition_with_todays_plan())


def first_edition_with_todays_plan() -> Checkpoint:
    checkpoint = open_checkpoint(FIRST_EDITION / "checkpoints" / "step-00000006")
    settings = {**checkpoint.state["settings"], "plan_version": batch_plan.PLAN_VERSION}
    return Checkpoint(checkpoint.directory, {**checkpoint.state, "settings": settings})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1e-3", "other values of optimizer.learning_rate (0.001, not 0.0002); pass the same"),
        ("model.layers=2", "other values of model.layers (2, not 1); pass the same"),
        (
            "schedule=cosine",
            "other values of schedule.kind (cosine, not linear), schedule.end_factor (0.0, not None), schedule.cycles "
            "(1, not None); pass the same",
        ),
        ("schedule.warmup_steps=5", "other values of schedule.warmup_steps (5, not 2); pass the same"),
        ("optimizer=adam", "other values of optimizer.kind (adam, not adamw), optimizer.weight_decay (0.0, not 0.01)"),
        ("data.seed=1", "differs from the data of"),
    ],
)
def test_a_run_of_the_first_edition_with_other_values_is_refused(
    small_config: MakeConfig, override: str, message: str
) -> None:
    config, prepared = prepare_inputs(small_config(*AS_IN_FIRST_EDITION, override), None)
    with pytest.raises(UserError) as raised:
        check_resume(config, prepared.cache, first_edition_with_todays_plan())
    assert message in str(raised.value)


@pytest.mark.parametrize("kind", ["adafactor", "muon"])
def test_the_slots_of_native_optimizers_stay_in_their_framework(
    kind: str, make_run: MakeRun, small_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = (f"optimizer={kind}", "optimizer.semantics=native", "optimizer.epsilon=1e-7")
    run_dir = make_run("old", *native)
    monkeypatch.setattr(Checkpoint, "environments", property(lambda checkpoint: [{"framework": "tf"}]))
    config = resolve_config(small_config(f"run_dir={tmp_path / 'new'}", f"resume={run_dir}", *native))
    problem = re.escape(f"has the slots of TensorFlow's own {kind}, which PyTorch's does not have; resume it in Tens")
    with pytest.raises(UserError, match=problem):
        describe_plan(config, "torch")
    with pytest.raises(UserError, match=problem):
        resume(config)
    assert "step 4" in describe_plan(config, "tf")
