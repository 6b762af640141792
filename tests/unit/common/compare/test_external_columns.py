"""Tests of the columns of other programs' files: their names, and values that are no numbers."""

from pathlib import Path

import pytest

from common.compare.external.known_columns import KNOWN_COLUMNS
from common.compare.external.load import load_external_runs
from common.compare.options import load_options, parse_command_line
from common.errors import UserError
from tests.unit.common.compare.conftest import Load, join_rows


def test_columns_that_the_user_names(load: Load) -> None:
    run = load("log.csv", join_rows("n,ce,loss", "3,0.5,9"), step="n", loss="ce")
    assert run.steps.tolist() == [3] and run.metrics["loss"].tolist() == [0.5]


def test_a_column_that_is_not_read(load: Load) -> None:
    rows = join_rows("step,loss,lr", "1,0.5,warm-up", "2,0.25,1e-3")
    with pytest.raises(UserError, match=r"csv:2: 'lr' must be a number, found 'warm-up'; remove it with columns.lea"):
        load("a.csv", rows)
    run = load("a.csv", rows, learning_rate=None)
    assert run.metrics["loss"].tolist() == [0.5, 0.25] and not run.has_metric("learning_rate")


def test_times_of_a_clock(load: Load) -> None:
    rows = ("epoch,train_loss,valid_loss,time", "0,0.9,0.8,00:12", "1,0.7,0.65,01:02", "2,0.5,0.6,1:00:02")
    run = load("history.csv", join_rows(*rows))
    assert run.metrics["seconds"].tolist() == [12, 74, 3676] and run.evals["loss"].tolist() == [0.8, 0.65, 0.6]


def test_names_with_any_characters(tmp_path: Path) -> None:
    name = "sun-3 (lr=1e-3, a) - train/loss"
    for argument in (f"columns.loss={name}", f"columns.loss='{name}'"):
        assert parse_command_line(None, [argument, "columns.seconds=null"]).options.columns["loss"] == name
    (tmp_path / "a.csv").write_text(join_rows(f'Step,"{name}"', "1,0.5"))
    (tmp_path / "b.csv").write_text(join_rows("step,loss", "1,0.5"))
    paths = [("a", tmp_path / "a.csv"), ("b", tmp_path / "b.csv")]
    runs, errors = load_external_runs(paths, {"loss": name})
    assert [run.columns["loss"] for run in runs] == [name, "loss"] and not errors
    with pytest.raises(UserError, match="columns.step=x: no file has this column"):
        load_external_runs(paths, {"loss": name, "step": "x"})


def test_a_metric_of_mlflow_and_a_csv_of_tensorboard(load: Load) -> None:
    run = load("train_loss", join_rows("1700000000000 0.5 0", "1700000000001 0.25 1"))
    assert run.steps.tolist() == [1, 2] and run.metrics["loss"].tolist() == [0.5, 0.25]
    rows = join_rows("Wall time,Step,Value", "1700.5,0,0.5", "1701.5,1,0.25")
    by_epochs = load("run-train-tag-epoch_loss.csv", rows)
    assert by_epochs.unit == "epoch" and by_epochs.metrics["loss"].tolist() == [0.5, 0.25]
    with pytest.raises(UserError, match="batch_loss.csv: Keras's mean since the start of an epoch; name the directory"):
        load("run-train-tag-batch_loss.csv", rows)


def test_a_column_that_is_not_there(load: Load) -> None:
    with pytest.raises(UserError, match=r"columns.loss=x: no such column; use one of step, loss"):
        load("a.csv", join_rows("step,loss", "1,2"), loss="x")


def test_the_keys_of_the_columns(load: Load) -> None:
    assert list(load_options().columns) == list(KNOWN_COLUMNS)


def test_a_mean_of_an_epoch_in_lightnings_metrics(load: Load) -> None:
    rows = ("epoch,step,train_loss_epoch,train_loss_step", "0,1,,0.5", "0,2,0.6,", "1,4,,0.3", "1,5,0.4,")
    run = load("metrics.csv", join_rows(*rows), loss="train_loss_epoch")
    assert run.loss_windows is not None and run.weighs_examples
    assert (run.steps.tolist(), run.loss_windows.tolist()) == ([3, 6], [3, 3])
