"""Files in which a column says whether a row is of training or of an evaluation, and files that are appended to."""

import json
from collections.abc import Callable

import pytest

from common.errors import UserError
from tests.unit.common.compare.conftest import Load, join_rows


def test_the_log_of_mmcv(load: Load) -> None:
    """Iterations start again in each epoch, the first row has no epoch, and evaluations count validation images."""
    rows: list[dict[str, object]] = [{"env_info": "sys.platform: linux", "seed": None}]
    for epoch in (1, 2):
        for iteration in (50, 100, 150):
            loss = 1 / (150 * (epoch - 1) + iteration)
            times = {"data_time": 0.01, "time": 0.5 + iteration % 2}
            rows.append({"mode": "train", "epoch": epoch, "iter": iteration, "lr": 0.01, "loss": loss, **times})
        rows.append({"mode": "val", "epoch": epoch, "iter": 640, "lr": 0.01, "loss": 9.0 / epoch, "mIoU": 0.4})
    run = load("a.log.json", join_rows(*map(json.dumps, rows)))
    assert run.steps.tolist() == [50, 100, 150, 200, 250, 300]
    assert run.metrics["loss"].tolist() == [1 / step for step in run.steps]
    assert run.eval_steps.tolist() == [150, 300] and run.evals["loss"].tolist() == [9.0, 4.5]
    assert run.loss_windows is not None and run.loss_windows.tolist() == [50] * 6
    assert not run.has_metric("seconds")
    assert "mine: rows whose mode is val are evaluations" in run.notes
    assert "mine: time left out: it does not grow, so it is not a time since the start" in run.notes


def test_rows_of_both_losses_one_after_another(load: Load) -> None:
    """All rows of the evaluation follow all rows of training, as in a table that was made of columns."""
    training = [f"training,{epoch},{1 / epoch}" for epoch in (1, 2, 3)]
    evaluation = [f"validation,{epoch},{2 / epoch}" for epoch in (1, 2, 3)]
    run = load("long.csv", join_rows("Loss type,Epoch,Loss", *training, *evaluation))
    assert run.unit == "epoch" and run.metrics["loss"].tolist() == [1, 1 / 2, 1 / 3]
    assert run.eval_steps.tolist() == [1, 2, 3] and run.evals["loss"].tolist() == [2, 1, 2 / 3]


def test_rows_of_a_test_split_are_left_out(load: Load) -> None:
    run = load("log.csv", join_rows("step,split,loss", "1,train,0.5", "2,train,0.4", "2,val,0.6", "2,test,0.7"))
    assert run.metrics["loss"].tolist() == [0.5, 0.4] and run.evals["loss"].tolist() == [0.6]
    assert "mine: 1 row left out whose split is test" in run.notes


def test_other_modes_are_no_phases(load: Load) -> None:
    run = load("log.csv", join_rows("step,mode,loss", "1,fast,0.5", "2,val,0.4"))
    assert run.metrics["loss"].tolist() == [0.5, 0.4] and not len(run.eval_steps)


def test_a_header_that_gets_more_columns(load: Load) -> None:
    """A script writes its header and all rows again at every save."""
    later_save = ["step,loss,rmse", "1,0.5,", "2,0.4,7.5"]
    run = load("stats.csv", join_rows("step,loss", "1,0.5", *later_save, *later_save))
    assert run.steps.tolist() == [1, 2] and run.metrics["loss"].tolist() == [0.5, 0.4]
    assert "mine: 3 rows with loss left out, because a later row has the same step" in run.notes


def test_a_log_as_text_is_refused_as_such(load: Load) -> None:
    line = "2022-05-07 13:14:22,908 - INFO - Epoch [1][50/200]\tlr: 0.01000, eta: 1 day, loss_cls: 1.2, loss: 1.7"
    nanogpt = "iter 10: loss 4.1234, time 100.00ms, mfu 10.00%"
    for text in (line, nanogpt):
        with pytest.raises(UserError, match=r"a\.log: lines of a log as text, which are not read; expected a CSV"):
            load("a.log", join_rows(text, text))


STEPS_OF_EPOCHS = [(epoch, step) for epoch in (0, 1) for step in (0, 1, 2)]
TRAINING_ROWS = [f"{epoch},{step},train,{3 * epoch + step + 1}" for epoch, step in STEPS_OF_EPOCHS]
EVALUATION_ROWS = [f"{epoch},{step},val,{9 + step}" for epoch, step in STEPS_OF_EPOCHS if step < 2]


def test_evaluations_do_not_change_the_length_of_an_epoch(load: Load) -> None:
    run = load("log.csv", join_rows("epoch,step,phase,loss", *TRAINING_ROWS, *EVALUATION_ROWS))
    assert run.steps.tolist() == run.metrics["loss"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.eval_steps.tolist() == [1, 2, 4, 5] and run.evals["loss"].tolist() == [9, 10, 9, 10]


AVERAGED = "several rows, such as one for each batch; their values are averaged, each row alike"


def test_batches_of_evaluations_in_steps_of_the_epoch_are_averaged(load: Load) -> None:
    rows = [*TRAINING_ROWS[:3], *EVALUATION_ROWS[:2], *TRAINING_ROWS[3:], *EVALUATION_ROWS[2:]]
    run = load("log.csv", join_rows("epoch,step,phase,loss", *rows))
    assert run.steps.tolist() == run.metrics["loss"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.eval_steps.tolist() == [3, 6] and run.evals["loss"].tolist() == [9.5, 9.5]
    assert f"mine: 2 evaluations have {AVERAGED}" in run.notes


@pytest.mark.parametrize("step", [lambda number: number, lambda number: number + 1, lambda _: 4])
def test_batches_of_one_evaluation_are_averaged(load: Load, step: Callable[[int], int]) -> None:
    """The number of a batch may be the step of a row of training."""
    evaluation = [f"{step(number)},val,{2.0 + number},{number}" for number in range(5)]
    run = load("log.csv", join_rows("step,phase,loss,acc", "2,train,0.5,", "4,train,0.4,", *evaluation, "6,train,0.3,"))
    assert run.steps.tolist() == [2, 4, 6]
    assert run.eval_steps.tolist() == [4] and run.evals["loss"].tolist() == [4] and run.evals["accuracy"][0] == 2
    assert f"mine: 1 evaluation has {AVERAGED}" in run.notes


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        ("eval", ("False", "True")),
        ("is_train", ("1", "0")),
        ("is_train", ("1.0", "0.0")),
        ("isTraining", ("T", "F")),
        ("is_eval", ("no", "yes")),
        ("is_eval", ("", "True")),
        ("dataset", ("train", "val")),  # of any name, if it has the words
    ],
)
def test_a_flag_tells_the_phase(load: Load, column: str, texts: tuple[str, str]) -> None:
    training, evaluation = texts
    rows = [f"1,{training},0.5", f"1,{evaluation},0.7", f"2,{training},0.4", f"2,{evaluation},0.6"]
    run = load("log.csv", join_rows(f"step,{column},loss", *rows))
    assert run.metrics["loss"].tolist() == [0.5, 0.4] and run.evals["loss"].tolist() == [0.7, 0.6]
    assert f"mine: rows whose {column} is {evaluation.lower()} are evaluations" in run.notes


def test_a_flag_of_json_tells_the_phase_and_a_number_does_not(load: Load) -> None:
    rows = [{"step": step, "training": flag, "loss": step + flag} for step in (1, 2) for flag in (True, False)]
    run = load("log.jsonl", join_rows(*map(json.dumps, rows)))
    assert run.metrics["loss"].tolist() == [2, 3] and run.evals["loss"].tolist() == [1, 2]
    numbers = load("log.csv", join_rows("step,loss,val", "1,0.5,0", "2,0.4,1"))
    assert numbers.metrics["loss"].tolist() == [0.5, 0.4] and not len(numbers.eval_steps)


@pytest.mark.parametrize(
    ("column", "texts", "listed"),
    [
        ("train", ("1", "0"), "train is 0 and 1"),
        ("phase", ("0", "1"), "phase is 0 and 1"),
        ("part", ("tr", "va"), "part is tr and va"),
        ("is_train", ("True", ""), "is_train is True and nothing"),
    ],
)
def test_a_column_of_unknown_words_that_tells_rows_of_a_step_apart_is_refused(
    load: Load, column: str, texts: tuple[str, str], listed: str
) -> None:
    rows = [f"{step},{text},{1 / step}" for step in (1, 2) for text in texts]
    with pytest.raises(UserError, match=rf"log\.csv:3: several rows of a step have a loss, and {listed}; they are no"):
        load("log.csv", join_rows(f"step,{column},loss", *rows))
    load("log.csv", join_rows(f"step,{column},loss", *rows[::2]))


def test_a_restart_on_another_host_is_no_other_phase(load: Load) -> None:
    rows = ["1,gpu-1,0.5", "2,gpu-1,0.4", "2,gpu-2,0.45", "3,gpu-2,0.3"]
    assert load("log.csv", join_rows("step,host,loss", *rows)).metrics["loss"].tolist() == [0.5, 0.45, 0.3]


def test_evaluations_of_several_data_sets_are_not_averaged(load: Load) -> None:
    rows = [
        f"{step},{split},{text},0.5" for step in (1, 2) for split, text in (("train", "a"), ("val", "b"), ("val", "c"))
    ]
    with pytest.raises(UserError, match="several rows of a step have a loss, and set is b and c; keep the rows of one"):
        load("log.csv", join_rows("step,split,set,loss", *rows))


def test_evaluations_before_training_have_their_own_epoch(load: Load) -> None:
    """The loop `for phase in ("val", "train")` evaluates each epoch first."""
    rows = ["0,val,9", "0,train,1", "1,val,3", "1,train,2"]
    single = load("log.csv", join_rows("epoch,phase,loss", *rows))
    assert single.unit == "epoch" and single.eval_steps.tolist() == [1, 2] and single.evals["loss"].tolist() == [9, 3]
    batches = [row + digit for row in rows for digit in ("", ".5")]
    batched = load("log.csv", join_rows("epoch,phase,loss", *batches))
    assert batched.eval_steps.tolist() == [0, 2] and batched.evals["loss"].tolist() == [9.25, 3.25]


def test_batches_of_the_last_evaluation_are_no_evaluations_of_the_first_steps(load: Load) -> None:
    rows = [*(f"{step},train,0.5" for step in range(20)), *(f"{number},val,{number}" for number in range(5))]
    run = load("log.csv", join_rows("step,split,loss", *rows))
    assert run.eval_steps.tolist() == [20] and run.evals["loss"].tolist() == [2]


def test_epochs_with_a_single_row(load: Load) -> None:
    rows = [{"mode": "train", "epoch": epoch, "iter": 100, "loss": 1 / epoch} for epoch in (1, 2, 3)]
    run = load("a.log.json", join_rows(*map(json.dumps, [{"env_info": ""}, *rows])))
    assert run.steps.tolist() == [100, 200, 300]


def test_an_evaluation_keeps_a_step_between_rows_of_training(load: Load) -> None:
    rows = ["50,train,0.5", "100,train,0.4", "117,val,0.9", "150,train,0.3", "200,train,0.2", "234,val,0.8"]
    assert load("log.csv", join_rows("step,split,loss", *rows)).eval_steps.tolist() == [117, 234]


def test_metrics_with_a_prefix_keep_their_names(load: Load) -> None:
    run = load("log.csv", join_rows("step,phase,train_loss,val_loss", "1,train,0.5,", "1,val,,0.7", "2,train,0.4,"))
    assert run.metrics["loss"].tolist() == [0.5, 0.4] and run.evals["loss"].tolist() == [0.7]


def test_rows_of_an_unknown_phase_are_left_out(load: Load) -> None:
    rows = ["1,train,0.5", "1,train_eval,0.3", "1,validate,0.8", "2,train,0.4", "2,train_eval,0.2"]
    run = load("log.csv", join_rows("step,phase,loss", *rows))
    assert run.metrics["loss"].tolist() == [0.5, 0.4] and run.evals["loss"].tolist() == [0.8]
    assert "mine: 2 rows left out whose phase is train_eval" in run.notes


def test_a_file_of_a_test_split_is_refused(load: Load) -> None:
    with pytest.raises(UserError, match=r"log\.csv:2: split is test in all rows, which is neither training nor valid"):
        load("log.csv", join_rows("step,split,loss", "1,test,0.5", "2,test,0.4"))


def test_a_column_with_a_number_after_loss_is_no_log(load: Load) -> None:
    """TensorFlow 1 names tensors in this way."""
    assert load("log.csv", join_rows("step,loss,aux_loss:0", "1,0.5,0.1")).steps.tolist() == [1]
