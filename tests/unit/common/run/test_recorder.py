from pathlib import Path

import pytest

from common.errors import UserError
from common.run.recorder import Recorder
from common.training.rows import read_rows
from common.training.state import Position, State
from tests.conftest import Python
from tests.unit.common.run.conftest import evaluation, record, recorded, step


def test_losses_at_full_precision(run_dir: Path) -> None:
    rows = [step(1, 0.1, loss=0.1 + 0.2, grad_norm=1e-17 / 3), step(2, 0.2, loss=1 / 3)]
    record(run_dir, rows, [evaluation(2, accuracy=2 / 3)])
    assert read_rows(run_dir / "metrics.jsonl") == [{**rows[0], "trained_by": "torch single"}, rows[1]]
    assert read_rows(run_dir / "evals.jsonl") == [evaluation(2, accuracy=2 / 3)]


def test_rows_are_there_as_soon_as_they_are_recorded(run_dir: Path) -> None:
    recorder = Recorder(run_dir, Position(), "torch single")
    recorder.record_steps([step(1, 0.1)], [], 1.0)
    recorder.record_evaluation(evaluation(1))
    assert len(read_rows(run_dir / "metrics.jsonl")) == len(read_rows(run_dir / "evals.jsonl")) == 1
    recorder.close()


def test_traffic_only_where_there_is_any(run_dir: Path) -> None:
    recorder = Recorder(run_dir, Position(), "torch single")
    recorder.record_steps([step(1, 0.1)], [], 1.0)
    assert not (run_dir / "traffic.jsonl").exists()
    recorder.record_steps([step(2, 0.2)], [{"step": 2, "gathered": [1]}], 1.0)
    recorder.close()
    assert read_rows(run_dir / "traffic.jsonl") == [{"step": 2, "gathered": [1]}]


def test_rows_after_the_start_are_dropped(run_dir: Path) -> None:
    record(run_dir, [step(number, 0.1) for number in (1, 2, 3)], [evaluation(2), evaluation(3)])
    recorder = Recorder(run_dir, Position(2, validation={"loss": 0.7, "accuracy": 0.5}), "torch single")
    recorder.record_steps([step(3, 0.3)], [], 1.0)
    recorder.close()
    assert recorded(run_dir) == [[1, 2, 3], [2], []]
    assert len(list((run_dir / "tensorboard").iterdir())) == 1, "the events must be in one new file"


def test_rows_that_are_lost_are_reported(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(run_dir, [step(number, 0.1) for number in (1, 2)], [evaluation(2)])
    Recorder(run_dir, Position(2), "torch single").close()
    assert not caplog.messages
    Recorder(run_dir, Position(5), "torch single").close()
    assert caplog.messages == ["metrics.jsonl has rows of 2 of the 5 steps before the checkpoint; the others are lost"]


def test_tensorboard_reads_the_events(run_dir: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record(run_dir, [step(number, 0.1 * number) for number in (1, 2, 3)], [evaluation(3)])
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    scalars = {
        tag: [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    assert scalars == {
        "train/loss": [(1, 1.0), (2, 0.5), (3, 1 / 3)],
        "train/learning_rate": [(1, 1e-3), (2, 1e-3), (3, 1e-3)],
        "train/grad_norm": [(1, 2.0), (2, 2.0), (3, 2.0)],
        "validation/loss": [(3, 0.7)],
        "validation/accuracy": [(3, 0.5)],
    }


def test_rows_are_flushed_to_the_disk_before_a_checkpoint(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    recorder = Recorder(run_dir, Position(), "torch single")
    recorder.record_steps([step(1, 0.1)], [{"step": 1}], 1.0)
    monkeypatch.setattr("os.fsync", synced.append)
    recorder.save(State({}, {}), Position(1))
    assert len(set(synced)) == 3

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be written \(No space left on device\)"):
        recorder.save(State({}, {}), Position(1))
    recorder.close()


@pytest.mark.slow
def test_recording_imports_no_framework(run_dir: Path, python: Python) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from common.training.state import Position; from common.run.recorder import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]), Position(), 'torch single')\n"
        "recorder.record_steps([dict(step=1, loss=1.0, learning_rate=1.0, grad_norm=1.0)], [], 1.0)\n"
        "recorder.close()\n"
        "print([name for name in ('torch', 'tensorflow', 'keras', 'transformers') if name in sys.modules])\n"
    )
    assert python(code, run_dir) == "[]\n"
    assert list((run_dir / "tensorboard").iterdir())
