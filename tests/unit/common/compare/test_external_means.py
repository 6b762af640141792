"""Tests of losses of other programs that are means of several steps, are rounded, or count epochs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from common.compare.external.external_values import measure_rounding
from common.compare.external.load import load_external_run
from common.compare.pair import Tolerance
from common.compare.runs import Run, load_run
from common.compare.verdict import Comparison, compare
from common.errors import UserError
from tests.unit.common.compare.conftest import STEPS, MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}
LOSSES = [2 + 0.37 * ((7 * step) % 5) - step / 40 for step in range(1, STEPS + 1)]  # of the run that others follow
Tags = dict[str, Sequence[tuple[int, float]]]


def make_steps(make_run: MakeRun, losses: Sequence[float] = LOSSES, overrides: Sequence[str] = ()) -> Run:
    def change(rows: list[dict[str, Any]]) -> None:
        for row, loss in zip(rows, losses, strict=True):
            row["loss"] = loss

    return load_run(make_run("a", *overrides, change=change))


def load(tmp_path: Path, name: str, content: Any, **columns: str | None) -> Run:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_external_run("mine", path, columns)


def load_tensorboard(tmp_path: Path, tags: Tags, **columns: str | None) -> Run:
    for directory_and_tag, points in tags.items():
        directory, _, tag = directory_and_tag.rpartition("/")
        writer = EventFileWriter(str(tmp_path / "logs" / directory), filename_suffix=tag)
        for step, value in points:
            writer.add_event(
                Event(wall_time=1, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
            )
        writer.close()
    return load_external_run("mine", tmp_path / "logs", columns)


def compare_runs(*runs: Run) -> Comparison:
    return compare(list(runs), TOLERANCES)


def make_trainer_state(ends: Sequence[int], digits: int, first: int = 0) -> dict[str, Any]:
    """Return a trainer_state.json: at each of the ends, the mean loss since the end before."""
    history = [
        {"step": end, "epoch": end / 20, "loss": round(float(np.mean(LOSSES[start:end])), digits)}
        for start, end in zip([first, *ends], ends, strict=False)
    ]
    summary = {"step": ends[-1], "train_loss": 0.5, "train_runtime": 1.0, "epoch": 1.0}
    return {"log_history": [*history, summary]}


@pytest.mark.parametrize("digits", [4, 17])
@pytest.mark.parametrize("ends", [(5, 10, 15, 20), (1, 5, 10, 15), (4, 8, 12), range(1, 21)])
def test_means_of_a_trainer(make_run: MakeRun, tmp_path: Path, ends: Sequence[int], digits: int) -> None:
    """The rows say the interval: logging_steps may have changed, and logging_first_step adds a row."""
    run = load(tmp_path, "trainer_state.json", make_trainer_state(ends, digits))
    comparison = compare_runs(make_steps(make_run), run)
    assert comparison.is_in_lockstep, comparison.sentence
    assert comparison.pairs[0].steps == len(ends)


def test_means_of_other_losses_differ(make_run: MakeRun, tmp_path: Path) -> None:
    run = load(tmp_path, "trainer_state.json", make_trainer_state((5, 10, 15, 20), 4))
    comparison = compare_runs(make_steps(make_run, [*LOSSES[:12], LOSSES[12] + 0.01, *LOSSES[13:]]), run)
    assert "diverge at step 15 of 20: loss differs by 0.002" in comparison.sentence


def test_a_first_mean_of_unknown_length_is_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    run = load(tmp_path, "trainer_state.json", make_trainer_state((10, 15, 20), 17, first=5))  # without step 5
    comparison = compare_runs(make_steps(make_run), run)
    assert comparison.is_in_lockstep and comparison.pairs[0].steps == 2
    assert any("the row of step 10 is left out" in note for note in comparison.notes)


def test_two_first_means_of_unknown_lengths_are_left_out(tmp_path: Path) -> None:
    content = make_trainer_state((10, 15, 20), 17, first=5)
    runs = [load(tmp_path, name, content) for name in ("trainer_state.json", "b.json")]
    assert compare_runs(*runs).pairs[0].steps == 2


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_the_log_of_a_trainer_without_its_state(make_run: MakeRun, tmp_path: Path, name: str) -> None:
    history = make_trainer_state((5, 10, 15, 20), 4)["log_history"]
    content = history if name == "rows.json" else "".join(f"{json.dumps(row)}\n" for row in history)
    assert compare_runs(make_steps(make_run), load(tmp_path, name, content)).is_in_lockstep


def test_the_log_of_a_trainer_in_a_table(make_run: MakeRun, tmp_path: Path) -> None:
    """Weights & Biases exports the history of a Trainer with an index, its own count of rows, and empty cells."""
    rows = [",_step,_runtime,train/loss,train/global_step,train/epoch,eval/loss"]
    history = make_trainer_state((5, 10, 15, 20), 4)["log_history"][:-1]
    for number, row in enumerate(history):
        rows.append(f"{number},{number},{number}.5,{row['loss']},{row['step']}.0,{row['epoch']},")
    rows.append("4,4,5.5,,20.0,1.0,0.7")
    run = load(tmp_path, "wandb.csv", "\n".join(rows))
    assert compare_runs(make_steps(make_run), run).is_in_lockstep and run.eval_steps.tolist() == [20]


def test_two_files_with_different_means(tmp_path: Path) -> None:
    tens = load(tmp_path, "tens.json", make_trainer_state((10, 20), 17))
    fives = load(tmp_path, "fives.json", make_trainer_state((4, 10, 20), 17))
    [pair] = compare_runs(tens, fives).pairs
    assert pair.steps == 1 and pair.max_loss_difference == 0  # at step 20, since both have the mean of 11 to 20
    assert "compared at the 1 steps at which the losses of both runs are means over the same steps" in pair.notes


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (["0.5000", "1.1"], 5e-5),
        ([1.1, 0.9876], 5e-5),  # JSON leaves out zeros at the end
        (["12.35", "12.11", "11.98", "11.02", "0.1235"], 5e-3),  # four significant digits
        ([1, 2], 0),
        ([1.0, 2.0], 0),
        (["1e-3", "2e-3"], 5e-4),
        ([0.1234567890123456, None, "NaN", ""], 5e-17),
    ],
)
def test_the_error_of_few_digits(values: list[object], error: float) -> None:
    assert measure_rounding(values) == pytest.approx(error)


def test_few_digits_are_said(make_run: MakeRun, tmp_path: Path) -> None:
    rows = ["step,loss", *(f"{step},{loss:.2f}" for step, loss in enumerate(LOSSES, start=1))]
    comparison = compare_runs(make_steps(make_run), load(tmp_path, "log.csv", "\n".join(rows)))
    assert comparison.is_in_lockstep and "(tolerance 0.00501)" in comparison.sentence
    assert "mine: its loss has few digits; a difference up to 0.005 counts as rounding" in comparison.notes


def list_keras_tags(is_validated: bool, has_batches: bool) -> Tags:
    """Return what Keras's TensorBoard callback writes for 4 epochs of 5 steps."""
    epochs = [(epoch, float(np.mean(LOSSES[5 * epoch : 5 * epoch + 5]))) for epoch in range(4)]
    tags: Tags = {"train/epoch_loss": epochs, "train/epoch_learning_rate": [(epoch, 0.01) for epoch, _ in epochs]}
    if is_validated:
        tags["validation/epoch_loss"] = [(epoch, 0.5) for epoch, _ in epochs]
        tags["validation/evaluation_loss_vs_iterations"] = [(5 * epoch + 5, 0.5) for epoch, _ in epochs]
    if has_batches:  # the mean since the start of the epoch
        tags["train/batch_loss"] = [
            (step, float(np.mean(LOSSES[(step - 1) // 5 * 5 : step]))) for step in range(1, STEPS + 1)
        ]
    return tags


@pytest.mark.parametrize(
    ("is_validated", "has_batches", "columns", "unit", "count"),
    [
        (True, False, {}, "epoch", 4),
        (True, True, {}, "step", 20),
        (False, True, {}, "step", 20),
        (False, True, {"loss": "train/epoch_loss"}, "epoch", 4),
    ],
)
def test_epochs_and_batches_of_keras(
    make_run: MakeRun,
    tmp_path: Path,
    is_validated: bool,
    has_batches: bool,
    columns: dict[str, str],
    unit: str,
    count: int,
) -> None:
    run = load_tensorboard(tmp_path, list_keras_tags(is_validated, has_batches), **columns)
    assert run.unit == unit and run.steps.tolist() == list(range(1, count + 1))
    comparison = compare_runs(make_steps(make_run), run)
    assert comparison.is_in_lockstep and f"agree at all {count} {unit}s" in comparison.sentence, comparison.sentence
    assert run.eval_steps.tolist() == ([] if not is_validated else [1, 2, 3, 4] if unit == "epoch" else [5, 10, 15, 20])
    assert any("left out" in note for note in run.notes)


def test_epochs_of_unknown_length(make_run: MakeRun, tmp_path: Path) -> None:
    tags = list_keras_tags(is_validated=False, has_batches=True)
    tags["train/batch_loss"] = tags["train/batch_loss"][2::3]  # update_freq=3
    run = load_tensorboard(tmp_path, tags)
    assert run.unit == "epoch" and compare_runs(make_steps(make_run), run).verdict == "not comparable"
    with pytest.raises(UserError, match="columns.loss=train/batch_loss: Keras's mean since the start of an epoch, but"):
        load_external_run("mine", tmp_path / "logs", {"loss": "train/batch_loss"})


def test_a_step_csv_against_an_epoch_csv(tmp_path: Path) -> None:
    rows = [f"{(step - 1) // 5},{step},{loss!r}" for step, loss in enumerate(LOSSES, start=1)]
    epochs = [f"{epoch},{float(np.mean(LOSSES[5 * epoch : 5 * epoch + 5]))!r}" for epoch in range(4)]
    by_epochs = load(tmp_path, "epochs.csv", "\n".join(["epoch,loss", *epochs]))
    by_steps = load(tmp_path, "steps.csv", "\n".join(["epoch,step,loss", *rows]))
    comparison = compare_runs(by_steps, by_epochs)
    assert comparison.is_in_lockstep and "agree at all 4 epochs" in comparison.sentence, comparison.sentence
    interrupted = load(tmp_path, "interrupted.csv", "\n".join(["epoch,step,loss", *rows[:18]]))
    [pair] = compare_runs(interrupted, by_epochs).pairs
    assert pair.steps == 3 and pair.verdict == "same curve, experiment unknown"
    sampled = load(tmp_path, "sampled.csv", "\n".join(["epoch,step,loss", *rows[1::2]]))
    assert compare_runs(sampled, by_epochs).verdict == "not comparable"


def test_an_epoch_csv_against_a_run_of_a_number_of_epochs(make_run: MakeRun, tmp_path: Path) -> None:
    epochs = [f"{epoch},{float(np.mean(LOSSES[5 * epoch : 5 * epoch + 5]))!r}" for epoch in range(4)]
    by_epochs = load(tmp_path, "epochs.csv", "\n".join(["epoch,loss", *epochs]))
    comparison = compare_runs(make_steps(make_run, overrides=("train.epochs=4", "train.steps=20")), by_epochs)
    assert comparison.is_in_lockstep and "agree at all 4 epochs" in comparison.sentence, comparison.sentence
