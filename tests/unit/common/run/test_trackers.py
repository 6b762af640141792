"""Tests of the rows of a run that MLflow and Weights & Biases store on this machine."""

import json
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from common.config.schema import Config
from common.config.validate import check_config
from common.errors import UserError
from common.run.trackers import TRACKERS, Trackers
from common.training.rows import Row, select_scalars
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import evaluation, step

BLOCK, WHOLE, LAST = 1 << 15, 1, 4  # the size of a block and two kinds of parts in a log of LevelDB


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = psutil.Process().children(recursive=True)
    yield
    assert not [each for each in psutil.Process().children(recursive=True) if each not in before]


def train(config: Config, run_dir: Path, first: int, status: str) -> None:
    trackers = Trackers(config, run_dir)
    trackers.record_steps([step(number, 0.1, loss=1 / number) for number in (first, first + 1)], [], 1.0)
    trackers.record_evaluation(evaluation(first + 1, accuracy=0.25))
    trackers.close(status)


def test_mlflow_has_the_rows_the_settings_and_the_end(small_config: MakeConfig, run_dir: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    config = small_config("trackers=[mlflow]")
    train(config, run_dir, 1, "interrupted")
    client = mlflow.MlflowClient()
    (experiment,) = [each for each in client.search_experiments() if each.name == "lockstep"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (run_dir.name, "KILLED")
    assert run.data.params["optimizer.learning_rate"] == str(config.optimizer.learning_rate)
    train(config, run_dir, 3, "completed")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED", "a resumed run continues the same record"
    history = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(history) == [(number, 1 / number) for number in (1, 2, 3, 4)]
    assert set(run.data.metrics) == {*select_scalars(step(1, 0.1)), *select_scalars(evaluation(1, accuracy=0.25))}


def records(log: bytes) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB: after 7 bytes, blocks of 32 KiB of parts with headers of 7 bytes."""
    at, parts = 7, b""
    while at + 7 <= len(log):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        size, kind = struct.unpack("<HB", log[at + 4 : at + 7])
        parts += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (WHOLE, LAST):
            yield parts
            parts = b""


def test_wandb_keeps_the_rows_offline_and_leaves_no_process(small_config: MakeConfig, run_dir: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    train(small_config("trackers=[wandb]"), run_dir, 1, "completed")
    (path,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({"/".join(each.nested_key) or each.key: each.value_json for each in record.history.item})
    sent = [json.loads(row["train/loss"]) for row in rows if "train/loss" in row]
    assert sent == [1.0, 0.5] and any("validation/accuracy" in row for row in rows)
    assert json.loads((run_dir / "trackers.json").read_text()).keys() == {"wandb"}


def test_a_tracker_that_fails_is_left_out(
    small_config: MakeConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[int] = []

    class Failing:
        id = "1"

        def __init__(self, *arguments: Any) -> None:
            pass

        def send(self, rows: list[Row]) -> None:
            sent.extend(row["step"] for row in rows)
            raise ConnectionError("no route to\nhost")

        def end(self, status: str) -> None:
            raise AssertionError("the tracker must not be ended after an error")

    monkeypatch.setitem(TRACKERS, "mlflow", Failing)
    with caplog.at_level(logging.WARNING, "lockstep"):
        logging.getLogger("lockstep").propagate = True
        train(small_config("trackers=[mlflow]"), run_dir, 1, "completed")
    assert sent in ([1], [1, 2], [1, 2, 2]), "the tracker must not be called again after an error"
    (message,) = {*caplog.messages}
    reason = "ConnectionError: no route to host (" + os.path.relpath(__file__)  # a file outside of Lockstep
    assert message.startswith(f"trackers=[mlflow]: receives no more rows of this run: {reason}")


def test_training_does_not_wait_for_a_tracker(
    small_config: MakeConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released, answered = Event(), Event()

    class Hanging:
        def __init__(self, *arguments: Any) -> None:
            released.wait(600)
            answered.set()
            raise ConnectionError

    monkeypatch.setitem(TRACKERS, "mlflow", Hanging)
    monkeypatch.setattr("common.run.trackers.STOPPED_TIMEOUT", 0.1)
    logging.getLogger("lockstep").propagate = True
    train(small_config("trackers=[mlflow]"), run_dir, 1, "interrupted")
    assert not answered.is_set()
    assert caplog.messages == ["trackers=[mlflow]: did not accept the last rows in time; the run directory has them"]
    released.set()


@pytest.mark.parametrize(
    ("name", "problem"), [("neptune", "no such tracker; there are mlflow, wandb"), ("mlflow", "is not installed")]
)
def test_mistakes(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, name: str, problem: str) -> None:
    monkeypatch.setattr("common.config.validate.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"trackers=\[{name}\]: {problem}"):
        check_config(make_config(f"trackers=[{name}]"))
