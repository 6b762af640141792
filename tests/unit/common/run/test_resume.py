import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.config import schema as configs
from common.config.schema import Config
from common.errors import UserError
from common.prepare import prepare
from common.run.checkpoint import Checkpoints, Position, State, open_checkpoint
from common.run.directory import Recorder, new_run_dir, read_rows
from common.run.resume import find_start, make_ready
from tests.conftest import SMALL_CORPUS, MakeConfig

STEPS = (2, 4)


@pytest.fixture
def make_run(small_config: MakeConfig, tmp_path: Path) -> Callable[..., Path]:
    """The directory of a run that was interrupted after step 5, with checkpoints at 2 and 4, and evaluations there."""

    def make(name: str, *overrides: str) -> Path:
        config = small_config(f"run_dir={tmp_path / name}", *overrides)
        with new_run_dir(config, "torch") as run_dir:
            make_ready(config)
            cache, initial, _ = find_start(config)
            checkpoints, recorder = Checkpoints(config, run_dir, initial), Recorder(run_dir, Position())
            for step in range(1, 6):
                row = {"step": step, "loss": 1 / step, "learning_rate": 0.1, "grad_norm": 1.0, "examples": 32 * step}
                recorder.steps([row])
                recorder.traffic([{"step": step, "gathered": [step]}])
                if step in STEPS:
                    evaluation = {"loss": 0.5, "accuracy": 0.5}
                    recorder.evaluation({"step": step, **evaluation})
                    state = State({name: array + step for name, array in initial.weights().items()}, {})
                    checkpoints.save(state, Position(step, step, 32 * step, validation=evaluation))
            checkpoints.finish()
            checkpoints.close()
            recorder.close()
            (run_dir / "summary.json").write_text("{}")
        return run_dir

    return make


def resume(config: Config) -> int:
    """Do what the command and then the run's chief do. Returns the step that the run starts after."""
    with new_run_dir(config, "torch") as run_dir:
        make_ready(config)
        assert not (run_dir / "summary.json").exists()
        _, _, checkpoint = find_start(configs.load(run_dir / "config.yaml"))
        Recorder(run_dir, checkpoint.position if checkpoint else Position()).close()
        return checkpoint.position.step if checkpoint else 0


def recorded(run_dir: Path) -> list[list[int]]:
    names = ("metrics.jsonl", "evals.jsonl", "traffic.jsonl")
    return [[row["step"] for row in read_rows(run_dir / name)] for name in names]


def test_auto_goes_on_from_the_newest(make_run: Callable[..., Path], small_config: MakeConfig) -> None:
    run_dir = make_run("run")
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto", "strategy=ddp")) == 4
    assert recorded(run_dir) == [[1, 2, 3, 4], [2, 4], [1, 2, 3, 4]]
    assert configs.load(run_dir / "config.yaml").strategy.name == "ddp"


def test_auto_passes_over_a_damaged_one(make_run: Callable[..., Path], small_config: MakeConfig) -> None:
    run_dir = make_run("run")
    (run_dir / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"")
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto")) == 2
    assert recorded(run_dir) == [[1, 2], [2], [1, 2]]


def test_auto_starts_afresh_where_there_is_none(
    make_run: Callable[..., Path], small_config: MakeConfig, tmp_path: Path
) -> None:
    assert resume(small_config(f"run_dir={tmp_path / 'new'}", "resume=auto")) == 0
    run_dir = make_run("run")
    shutil.rmtree(run_dir / "checkpoints")
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto")) == 0
    assert recorded(run_dir) == [[], [], []]


@pytest.mark.parametrize(
    ("place", "step"), [(".", 4), ("checkpoints/step-00000004", 4), ("checkpoints/step-00000002", 2)]
)
def test_a_path_goes_on_in_a_new_directory(
    make_run: Callable[..., Path], small_config: MakeConfig, tmp_path: Path, place: str, step: int
) -> None:
    first = make_run("first")
    before = sorted(path.name for path in first.rglob("*"))
    run_dir = tmp_path / "second"
    assert resume(small_config(f"run_dir={run_dir}", f"resume={first / place}")) == step
    assert recorded(run_dir) == [list(range(1, step + 1)), [s for s in STEPS if s <= step], list(range(1, step + 1))]
    assert sorted(path.name for path in first.rglob("*")) == before, "the first stays as it was"
    shutil.rmtree(first)
    assert resume(small_config(f"run_dir={run_dir}", "resume=auto")) == step, "nothing hangs on the first"


def test_a_checkpoint_without_its_run(make_run: Callable[..., Path], small_config: MakeConfig, tmp_path: Path) -> None:
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
    make_run: Callable[..., Path], small_config: MakeConfig, tmp_path: Path, overrides: list[str], message: str
) -> None:
    first = make_run("first")
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", f"resume={first}", *overrides))
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "second").exists()


def test_more_steps_where_the_schedule_stays(
    make_run: Callable[..., Path], small_config: MakeConfig, tmp_path: Path
) -> None:
    first = make_run("first")
    longer = small_config(
        f"run_dir={tmp_path / 'second'}", f"resume={first}", "train.steps=600", "schedule.total_steps=300"
    )
    assert resume(longer) == 4
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"^train.steps=3: .*step-00000004 is past it, at 4; raise it$"):
        resume(small_config(f"run_dir={first}", "resume=auto", "train.steps=3", "schedule.total_steps=300"))
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before, "nothing is overwritten"


def test_other_data_is_refused_with_both_fingerprints(
    make_run: Callable[..., Path], small_config: MakeConfig, tmp_path: Path
) -> None:
    first = make_run("first")
    saved = json.loads((first / "checkpoints" / "step-00000004" / "state.json").read_text())["settings"]["data"]
    other = [f"resume={first}", "data.seed=1"]
    now = prepare(small_config(*other))[0].fingerprint
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", *other))
    assert saved in str(raised.value) and now in str(raised.value) and saved != now
    assert resume(small_config(f"run_dir={tmp_path / 'second'}", *other, "data.allow_change=true")) == 4


def test_only_the_weights_of_a_checkpoint(
    make_run: Callable[..., Path], make_config: MakeConfig, tmp_path: Path
) -> None:
    """A warm start on newer data: a new run, whose steps and optimizer begin afresh."""
    directory = make_run("first") / "checkpoints" / "step-00000004"
    newer = (*SMALL_CORPUS, "data.seed=1")
    config = make_config("model=pretrained", f"model.checkpoint={directory}", *newer, f"run_dir={tmp_path / 'second'}")
    with new_run_dir(config, "torch") as run_dir:
        make_ready(config)
        _, initial, checkpoint = find_start(configs.load(run_dir / "config.yaml"))
    assert checkpoint is None and not (run_dir / "checkpoints").exists()
    saved, weights = open_checkpoint(directory).load().parameters, initial.weights()
    assert saved.keys() == weights.keys()
    assert all(np.array_equal(saved[name], weights[name]) for name in saved)
    assert (initial.directory / "tokenizer.json").read_bytes() == (directory / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "nowhere: no such directory; give a run's, a checkpoint's, or auto"),
        ("empty", "empty: has no whole checkpoint; give a run or a checkpoint that has"),
        ("damaged", "model.safetensors does not match its checksum"),
    ],
)
def test_a_path_that_has_none(
    make_run: Callable[..., Path], small_config: MakeConfig, tmp_path: Path, place: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.move(make_run("first") / "checkpoints" / "step-00000004", tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError) as raised:
        resume(small_config(f"run_dir={tmp_path / 'second'}", f"resume={tmp_path / place}"))
    assert message in str(raised.value)
    assert not (tmp_path / "second").exists()


def test_a_directory_that_is_no_runs(small_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty; a run has a directory of its own, choose another$"):
        resume(small_config(f"run_dir={tmp_path}", "resume=auto"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_without_resume_a_run_is_not_overwritten(make_run: Callable[..., Path], small_config: MakeConfig) -> None:
    with pytest.raises(UserError, match="is not empty; .*, or go on with this run by resume=auto$"):
        resume(small_config(f"run_dir={make_run('run')}"))


def test_two_runs_in_one_directory(
    make_run: Callable[..., Path], small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.run.directory.LOCK_SECONDS", 0.1)
    config = small_config(f"run_dir={make_run('run')}", "resume=auto")
    with (
        new_run_dir(config, "torch"),
        pytest.raises(UserError, match="another run is using it; choose another, or end that one first$"),
    ):
        resume(small_config(f"run_dir={config.run_dir}", "resume=auto"))
    assert resume(config) == 4
