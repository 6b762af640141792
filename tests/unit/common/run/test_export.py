import errno
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.errors import UserError
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext
from common.run.export import export_model
from common.run.prepare import prepare_inputs
from common.training.state import Position, State
from tests.conftest import MakeConfig


@pytest.fixture
def run_dir(small_config: MakeConfig, tmp_path: Path) -> Path:
    """Return a run directory with three checkpoints, of which the second is the best."""
    (tmp_path / "run").mkdir()
    config, inputs = prepare_inputs(small_config("train.keep_checkpoints=9", f"run_dir={tmp_path / 'run'}"), None)
    checkpoints = CheckpointWriter(RunContext(config, "torch", inputs))
    for step, loss in ((1, 0.5), (2, 0.3), (3, 0.4)):
        position = Position(step, step, validation={"loss": loss, "accuracy": 0.5})
        weights = {"a": np.full(2, step, np.float32), "moving": np.full(2, 7, np.float32)}
        slots = {"exp_avg.a": np.ones(2, np.float32)}
        if step > 1:
            slots["average.a"] = np.full(2, step / 2, np.float32)
        checkpoints.save(State(weights, slots), position)
    checkpoints.finish()
    checkpoints.close()
    return tmp_path / "run"


@pytest.mark.parametrize(("of_best", "step"), [(False, 3), (True, 2)])
def test_the_newest_or_the_best(run_dir: Path, tmp_path: Path, of_best: bool, step: int) -> None:
    assert export_model(run_dir, tmp_path / "out", of_best, False).position.step == step
    assert load_file(tmp_path / "out" / "model.safetensors")["a"].tolist() == [step, step]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_the_average_of_the_weights(run_dir: Path, tmp_path: Path) -> None:
    assert export_model(run_dir, tmp_path / "out", True, True).position.step == 2
    weights = {name: array.tolist() for name, array in load_file(tmp_path / "out" / "model.safetensors").items()}
    assert weights == {"a": [1, 1], "moving": [7, 7]}
    for step in (2, 3):
        (run_dir / "checkpoints" / f"step-0000000{step}" / "state.json").unlink()
    with pytest.raises(UserError, match="step-00000001: has no average of the weights; train with ema.decay or"):
        export_model(run_dir, tmp_path / "none", False, True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_export_leaves_no_files(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    out = tmp_path / "out"
    if exists:
        out.mkdir()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("common.run.export.save_file", fail)
        with pytest.raises(UserError, match="out: cannot be written .*No space left"):
            export_model(run_dir, out, False, True)
    assert list(out.iterdir()) == [] if exists else not out.exists()
    export_model(run_dir, out, False, True)


def test_what_cannot_be_exported(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no checkpoints/; pass a run directory$"):
        export_model(tmp_path, tmp_path / "out", False, False)
    with pytest.raises(UserError, match=r"exists and is not an empty directory; choose another path$"):
        export_model(run_dir, run_dir, False, False)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"exists and is not an empty directory; choose another path$"):
        export_model(run_dir, tmp_path / "file", False, False)
    with pytest.raises(UserError, match="cannot be written"):
        export_model(run_dir, tmp_path / "file" / "below", False, False)
    for step in (1, 2, 3):
        (run_dir / "checkpoints" / f"step-0000000{step}" / "state.json").write_text("")
    for of_best, end in ((False, "; pass another"), (True, " that was evaluated; export without --best, or pass")):
        with pytest.raises(UserError, match=f"has no complete checkpoint{end}"):
            export_model(run_dir, tmp_path / "out", of_best, False)
    assert not (tmp_path / "out").exists()
