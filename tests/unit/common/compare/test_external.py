"""Tests of runs that other programs recorded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from common.compare.__main__ import main
from common.compare.external.load import load_external_run
from common.compare.pair import Tolerance
from common.compare.runs import load_run
from common.compare.verdict import Comparison, compare
from common.errors import UserError
from common.report.answers import list_next_steps
from common.report.differences import build_config_table
from tests.unit.common.compare.conftest import STEPS, Load, MakeRun, join_rows

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}
LOSSES = [1.1 - step / 100 for step in range(1, STEPS + 1)]  # of conftest's runs


def test_a_csv(load: Load) -> None:
    run = load("log.csv", join_rows("iteration;loss;lr", "1;0.5;1e-3", "", "2;0.25;1e-3"))
    assert run.steps.tolist() == [1, 2] and run.metrics["loss"].tolist() == [0.5, 0.25]
    assert run.metrics["learning_rate"].tolist() == [1e-3, 1e-3] and not run.has_metric("grad_norm")
    assert run.label == "mine" and run.notes[0] == "mine: a CSV, columns step=iteration, loss=loss, learning_rate=lr"


@pytest.mark.parametrize("absent", ["NA", "n/a", "None", "null", " "])
def test_entries_without_a_value(load: Load, absent: str) -> None:
    """Keras's CSVLogger writes NA for a metric that an epoch does not have."""
    run = load("log.csv", join_rows("epoch,loss,val_loss", f"0,0.5,{absent}", "1,0.25,0.75"))
    assert run.metrics["loss"].tolist() == [0.5, 0.25] and run.evals["loss"].tolist() == [0.75]


def test_steps_that_start_again_in_each_epoch(load: Load) -> None:
    rows = [f"{epoch},{step},{epoch + step / 100}" for epoch in range(3) for step in (10, 20, 30)]
    run = load("log.csv", join_rows("epoch,step,loss", *rows))
    assert run.steps.tolist() == list(range(10, 100, 10)) and run.metrics["loss"][3] == 1.1
    assert "mine: step starts again in each epoch; counted on from the epoch before" in run.notes
    from_zero = load("zero.csv", join_rows("epoch,step,loss", *(f"{n // 2},{n % 2},{n}" for n in range(6))))
    assert from_zero.steps.tolist() == [1, 2, 3, 4, 5, 6] and from_zero.metrics["loss"].tolist() == [0, 1, 2, 3, 4, 5]
    assert "mine: steps counted from 0 there" in from_zero.notes


def test_rows_of_json_without_a_step_are_epochs(load: Load) -> None:
    """DETR and other scripts of its authors write such a log.txt."""
    rows = [{"train_lr": 1e-4, "train_loss": 20 / (epoch + 1), "test_loss": 25.0, "epoch": epoch} for epoch in range(3)]
    run = load("log.txt", join_rows(*map(json.dumps, rows)))
    assert run.unit == "epoch" and run.steps.tolist() == [1, 2, 3] and run.metrics["loss"].tolist() == [20, 10, 20 / 3]
    assert "mine: its rows are epochs" in run.notes


def test_the_log_of_fairseq(load: Load) -> None:
    """Its numbers are texts, its rows of an evaluation name their updates otherwise, and a row has a mean."""
    rows: list[dict[str, object]] = []
    for epoch in (1, 2):
        for step in (200 * epoch - 100, 200 * epoch):
            rows.append(
                {"epoch": epoch, "update": step / 200, "loss": f"{1 - step / 1000:.3f}", "num_updates": str(step)}
            )
        rows.append({"epoch": epoch, "train_loss": "0.9", "train_num_updates": str(200 * epoch)})
        rows.append({"epoch": epoch, "valid_loss": f"{3 - epoch}", "valid_num_updates": str(200 * epoch)})
    run = load("train.log", join_rows(*map(json.dumps, rows)))
    assert run.unit == "step" and run.steps.tolist() == [100, 200, 300, 400]
    assert run.metrics["loss"].tolist() == [0.9, 0.8, 0.7, 0.6]
    assert run.eval_steps.tolist() == [200, 400] and run.evals["loss"].tolist() == [2, 1]
    assert run.loss_windows is not None and run.loss_windows.tolist() == [100] * 4
    assert "mine: 2 rows with valid_loss have no num_updates and take that of the row before" in run.notes
    with pytest.raises(UserError, match="'num_updates' must be a whole number, found nothing"):
        load("no.log", join_rows(*map(json.dumps, [*rows, {"epoch": 3, "loss": "0.5"}])))


def test_several_rows_of_an_epoch_are_steps(load: Load) -> None:
    rows = [f"{epoch},{epoch + batch / 10}," for epoch in (0, 1) for batch in (0, 1, 2)]
    run = load("log.csv", join_rows("epoch,loss,val_loss", *rows[:3], "0,,0.5", *rows[3:], "1,,0.4"))
    assert run.unit == "step" and run.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.metrics["loss"].tolist() == [0, 0.1, 0.2, 1, 1.1, 1.2]
    assert run.eval_steps.tolist() == [3, 6] and run.epoch_ends == [3, 6]
    assert (
        "mine: several rows of an epoch, and no column for the step: each row with loss counts as a step" in run.notes
    )


def test_an_epoch_that_was_trained_again_is_an_epoch(load: Load) -> None:
    run = load("log.csv", join_rows("epoch,loss", "1,3", "2,2", "2,2.1", "3,1"))
    assert run.unit == "epoch" and run.steps.tolist() == [1, 2, 3] and run.metrics["loss"].tolist() == [3, 2.1, 1]


def test_rows_without_a_step_are_counted(load: Load) -> None:
    rows = [{"loss": 0.5}, {"loss": 0.4}, {"val_loss": 0.6}, {"loss": 0.3}]
    run = load("log.jsonl", join_rows(*map(json.dumps, rows)))
    assert run.steps.tolist() == [1, 2, 3] and run.eval_steps.tolist() == [2]
    assert "mine: no column for the step: each row with loss counts as a step" in run.notes


def test_rows_that_are_left_out_are_counted(load: Load) -> None:
    run = load("log.csv", join_rows("step,loss", "1,0.5", "2,0.4", "1,0.3"))
    assert run.metrics["loss"].tolist() == [0.3, 0.4]
    assert "mine: 1 rows with loss left out, because a later row has the same step" in run.notes


@pytest.mark.parametrize("odd", ["a\u2028b", "a\u2029b", "a\x85b", "a\x0cb", "a\x1eb"])
def test_a_text_that_looks_like_several_lines(load: Load, odd: str) -> None:
    rows = [json.dumps({"step": step, "loss": 0.5, "sample": odd}, ensure_ascii=False) for step in (1, 2)]
    assert load("log.jsonl", join_rows(*rows)).steps.tolist() == [1, 2]
    assert load("log.json", join_rows(*rows)).steps.tolist() == [1, 2]
    assert load("log.csv", join_rows("step,loss,sample", f"1,0.5,{odd}", '2,0.5,"two\nlines"')).steps.tolist() == [1, 2]


def test_lightnings_metrics(load: Load) -> None:
    run = load(
        "metrics.csv", join_rows("epoch,step,train_loss,val_loss,val_acc", "0,0,0.9,,", "0,1,0.8,,", "0,1,,0.7,0.5")
    )
    assert run.steps.tolist() == [1, 2] and run.metrics["loss"].tolist() == [0.9, 0.8]
    assert run.eval_steps.tolist() == [2] and run.evals["accuracy"].tolist() == [0.5]
    assert "mine: steps counted from 0 there" in run.notes


def test_a_trainers_state(load: Load) -> None:
    history = [{"step": 5, "loss": 0.9, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 0.5}]
    history += [{"step": 5, "eval_loss": 0.8, "eval_accuracy": 0.6}, {"step": 5, "train_runtime": 3.0}]
    run = load("trainer_state.json", {"log_history": history, "logging_steps": 5, "best_metric": None})
    assert run.steps.tolist() == [5] and run.metrics["grad_norm"].tolist() == [1.5]
    assert run.eval_steps.tolist() == [5] and run.evals["loss"].tolist() == [0.8]
    assert "mine: its loss is the mean of 5 steps, since the row before" in run.notes


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("history.json", {"loss": [0.9, 0.8], "val_loss": [1.0, 0.9], "val_accuracy": [0.4, 0.5]}),
        ("keras.csv", join_rows("epoch,loss,val_loss,val_accuracy", "0,0.9,1.0,0.4", "1,0.8,0.9,0.5")),
    ],
)
def test_epochs_of_keras(load: Load, name: str, content: Any) -> None:
    run = load(name, content)
    assert run.unit == "epoch" and run.steps.tolist() == [1, 2] and run.metrics["loss"].tolist() == [0.9, 0.8]
    assert run.evals["accuracy"].tolist() == [0.4, 0.5]


def test_a_header_may_be_repeated(load: Load) -> None:
    """Test a file to which a second call of a training script has appended."""
    run = load("keras.csv", join_rows("epoch,loss", "0,0.9", "1,0.8", "epoch,loss", "2,0.7"))
    assert run.steps.tolist() == [1, 2, 3] and run.metrics["loss"].tolist() == [0.9, 0.8, 0.7]


def test_rows_as_json_lines(load: Load) -> None:
    run = load("rows.jsonl", join_rows('{"step": 1, "loss": 0.5}', '{"step": 2, "loss": NaN}'))
    assert run.steps.tolist() == [1, 2] and np.isnan(run.metrics["loss"][1])


def test_a_tensorboard_directory(tmp_path: Path) -> None:
    for directory, tag, values in (("train", "epoch_loss", [0.9, 0.8]), ("validation", "epoch_accuracy", [0.4, 0.5])):
        writer = EventFileWriter(str(tmp_path / directory))
        for step, value in enumerate(values):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=1, step=step, summary=summary))
        writer.close()
    run = load_external_run("mine", tmp_path, {})
    assert run.unit == "epoch" and run.steps.tolist() == [1, 2]
    assert np.allclose(run.metrics["loss"], [0.9, 0.8])


@pytest.mark.parametrize(
    ("first_step", "losses", "note"),
    [
        (0, [5.0, 6.0], "3 values left out, because they belong to an earlier run than events.out.tfevents.2"),
        (2, [1, 2, 5.0, 6.0], "1 values left out, because a later one of the tag has the same step"),
        (3, [1, 2, 3, 5.0, 6.0], None),
    ],
)
def test_event_files_of_one_directory(tmp_path: Path, first_step: int, losses: list[float], note: str | None) -> None:
    for number, start, values in ((1, 0, [1, 2, 3]), (2, first_step, [5.0, 6.0])):
        writer = EventFileWriter(str(tmp_path / "written"))
        for step, value in enumerate(values, start):
            summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
            writer.add_event(Event(wall_time=1, step=step, summary=summary))
        writer.close()
        (file,) = (tmp_path / "written").iterdir()
        file.rename(tmp_path / f"events.out.tfevents.{number}")
    (tmp_path / "written").rmdir()
    run = load_external_run("mine", tmp_path, {})
    assert run.metrics["loss"].tolist() == losses
    assert [text for text in run.notes if "left out" in text] == ([f"mine: {note}"] if note else [])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", join_rows("step,loss", "1,0.5", "2,abc"), "a.csv:3: 'loss' must be a number, found 'abc'"),
        ("a.csv", join_rows("step,loss", "1,0.5", "2"), "a.csv:3: 1 values, expected 2 as in line 1"),
        ("a.csv", join_rows("step,loss", "1.5,0.5"), "a.csv:2: 'step' must be a whole number, found 1.5"),
        (
            "a.csv",
            join_rows("epoch,step,loss", "0,1,0.5", "0,inf,0.4", "1,1,0.3"),
            "a.csv:3: 'step' must be a whole number, found inf",
        ),
        ("a.csv", join_rows("step,loss", "1e300,0.5"), "a.csv:2: 'step' must be a whole number, found 1e+300"),
        (
            "a.csv",
            join_rows("a,b", "1,2"),
            "a.csv: no column is known to be the loss; name the loss with columns.loss=NAME: a, b",
        ),
        ("a.csv", "", "a.csv: empty; expected a CSV with a header"),
        ("a.json", "{", "a.json: not valid JSON"),
        ("a.json", {"what": 1}, "a.json: unknown JSON; expected a CSV with a header"),
        ("a.json", {"log_history": [3]}, "a.json: entry 1 of log_history must be a JSON object, found 3"),
        ("a.json", {"loss": [1], "val_loss": [1, 2]}, "a.json: its lists differ in length"),
        ("a.jsonl", join_rows('{"step": 1, "loss": 1}', '{"st'), "a.jsonl:2: not a valid JSON row"),
    ],
)
def test_a_malformed_value_is_named(load: Load, tmp_path: Path, name: str, content: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        load(name, content)
    assert str(raised.value).startswith(f"{tmp_path}/{message}") and "\n" not in str(raised.value)


def test_a_binary_file_and_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match="file: not a text file; expected a CSV"):
        load_external_run("mine", tmp_path / "file", {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: neither a run directory nor a TensorBoard directory"):
        load_external_run("mine", tmp_path / "empty", {})


def compare_losses(make_run: MakeRun, load: Load, losses: list[float], every: int = 1) -> Comparison:
    rows = [f"{step},{loss!r}" for step, loss in enumerate(losses, start=1) if step % every == 0]
    return compare([load_run(make_run("a")), load("log.csv", join_rows("step,loss", *rows))], TOLERANCES)


@pytest.mark.parametrize("every", [1, 5])
def test_the_same_curve_is_not_the_same_experiment(make_run: MakeRun, load: Load, every: int) -> None:
    comparison = compare_losses(make_run, load, LOSSES, every)
    assert comparison.verdict == "same curve, experiment unknown" and comparison.is_in_lockstep
    assert f"torch ddp x2 and mine agree at all {STEPS // every} steps that both have" in comparison.sentence
    pair = comparison.pairs[0]
    assert (pair.max_loss_difference, pair.max_grad_norm_difference, pair.reasons) == (0, None, [])
    assert build_config_table(comparison) == {}


def test_another_curve(make_run: MakeRun, load: Load) -> None:
    comparison = compare_losses(make_run, load, [*LOSSES[:9], *(loss + 0.1 for loss in LOSSES[9:])])
    assert comparison.verdict == "different curve, experiment unknown" and not comparison.is_in_lockstep
    assert "diverge at step 10 of 20: loss differs by 0.1" in comparison.sentence


@pytest.mark.parametrize(
    ("losses", "advice"),
    [
        ([2.0, *LOSSES[1:]], "they differ before any update: compare the initial weights, the first batch"),
        ([*LOSSES[:9], 2.0, *LOSSES[10:]], "they agree before 10: compare the update (optimizer, schedule"),
    ],
)
def test_what_to_do_about_two_files_that_differ(load: Load, losses: list[float], advice: str) -> None:
    a, b = (
        load(f"{name}.csv", join_rows("step,loss", *(f"{n},{loss!r}" for n, loss in enumerate(values, start=1))))
        for name, values in (("a", LOSSES), ("b", losses))
    )
    [step] = list_next_steps(compare([a, b], TOLERANCES))
    assert step.startswith(advice) and "python -m common.diagnose a=torch:single b=tf:single model=custom" in step


def test_epochs_are_not_steps(make_run: MakeRun, load: Load) -> None:
    comparison = compare([load_run(make_run("a")), load("history.json", {"loss": LOSSES})], TOLERANCES)
    assert comparison.verdict == "not comparable"
    [reason] = comparison.pairs[0].reasons
    assert reason.startswith("no common steps: torch ddp x2 has a row for each step, mine for each epoch, and no file")


@pytest.mark.slow
def test_the_command_compares_external_runs(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{step},{loss!r}" for step, loss in enumerate(LOSSES, start=1)]
    Path("log.csv").write_text(join_rows("n,ce", *rows))
    Path("bad.csv").write_text(join_rows("step,loss", "1,x"))
    named = [str(make_run("a")), "mine=log.csv", "columns.step=n", "columns.loss=ce"]
    assert main([*named, "--check"]) == 0
    shown = capsys.readouterr().out
    assert "same curve, experiment unknown: torch ddp x2 and mine agree" in shown and "mine: a CSV, columns" in shown
    report = json.loads(Path("report.json").read_text())
    assert report["runs"][1]["framework"] is None and report["runs"][1]["precision"] == "unknown"
    assert "mine" in Path("report.html").read_text()
    assert main([str(tmp_path / "runs/a"), "bad=bad.csv", "--check"]) == 1
    assert "left out: bad.csv:2: 'loss' must be a number, found 'x'" in capsys.readouterr().err


def test_a_run_of_lockstep_is_no_external_run(make_run: MakeRun) -> None:
    path = make_run("torch")
    with pytest.raises(UserError, match=f"^{path}: a run of Lockstep has its own name; pass {path} in place of "):
        load_external_run("mine", path, {})
