import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.compare.runs import load_run
from common.compare.verdict import RunPair, Tolerance, compare_runs
from common.errors import UserError
from tests.unit.common.compare.conftest import STEPS, MakeRun

TOLERANCES = {
    "float32": Tolerance(loss=1e-5, grad_norm=1e-4),
    "float64": Tolerance(loss=1e-9, grad_norm=1e-8),
    "bfloat16": Tolerance(loss=5e-2, grad_norm=5e-1),
}
Change = Callable[[list[dict[str, Any]]], None]


def pair_of(a: Path, b: Path) -> RunPair:
    (pair,) = compare_runs([a, b], TOLERANCES).pairs
    return pair


def add(key: str, step: int, amount: float) -> Change:
    """Change one value of one row."""

    def change(rows: list[dict[str, Any]]) -> None:
        rows[step - 1][key] += amount

    return change


def test_equal_runs_are_in_lockstep(make_run: MakeRun) -> None:
    comparison = compare_runs([make_run("a"), make_run("b", framework="tf", strategy="mirrored")], TOLERANCES)
    assert comparison.verdict == "lockstep"
    assert comparison.pairs[0].steps == STEPS and comparison.pairs[0].max_loss_difference == 0


@pytest.mark.parametrize(
    ("key", "step", "amount", "seen"),
    [
        ("loss", 7, 1.1e-5, True),
        ("loss", 7, -1.1e-5, True),
        ("loss", 7, 0.9e-5, False),
        ("grad_norm", 10, 2 * 1.1e-4, True),
        ("grad_norm", 10, 2 * 0.9e-4, False),
        ("loss", STEPS, math.nan, True),
        ("grad_norm", 1, math.inf, True),
    ],
)
def test_a_difference_at_one_step(make_run: MakeRun, key: str, step: int, amount: float, seen: bool) -> None:
    pair = pair_of(make_run("a"), make_run("b", change=add(key, step, amount)))
    assert pair.first_step_beyond == (step if seen else None)
    assert pair.verdict == ("diverged" if seen else "lockstep")
    assert (pair.max_loss_difference_step if key == "loss" else pair.max_grad_norm_difference_step) == step


@pytest.mark.slow
def test_a_pair_is_the_same_both_ways(make_run: MakeRun) -> None:
    a, b = make_run("a"), make_run("b", change=add("loss", 3, 0.25))
    one, other = pair_of(a, b), pair_of(b, a)
    for name in ("verdict", "max_loss_difference", "max_grad_norm_difference", "first_step_beyond", "steps"):
        assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize(
    ("overrides", "summary", "word"),
    [
        (["train.seed=1"], {}, "train.seed"),
        (["train.global_batch_size=30"], {}, "train.global_batch_size"),
        (["optimizer.learning_rate=0.1"], {}, "optimizer.learning_rate"),
        ([], {"fingerprints": {"token_cache": "other", "initial_weights": "w"}}, "token cache"),
        ([], {"fingerprints": {"token_cache": "t", "initial_weights": "other"}}, "initial weights"),
        ([], {"plan_version": 2}, "different batch plans (version 1 | version 2)"),
    ],
)
def test_different_experiments_are_not_comparable(
    make_run: MakeRun, overrides: list[str], summary: dict[str, Any], word: str
) -> None:
    pair = pair_of(make_run("a"), make_run("b", *overrides, **summary))
    assert pair.verdict == "not comparable"
    assert word in "; ".join(pair.reasons)
    assert pair.max_loss_difference == 0  # the numbers are computed nevertheless


@pytest.mark.slow
def test_keys_that_cannot_change_a_curve_may_differ(make_run: MakeRun) -> None:
    other = ["strategy=mirrored", "strategy.replicas=4", "run_name=x", "train.log_every=3", "train.eval_every=5"]
    other += ["train.keep_checkpoints=9", "train.max_restarts=2", "train.virtual_epoch_examples=90", "resume=auto"]
    other += ["run_dir=x", "train.early_stopping.patience=4", "train.checkpoint_every=7", "train.checkpoint_seconds=9"]
    assert pair_of(make_run("a", "strategy=ddp"), make_run("b", *other)).verdict == "lockstep"


@pytest.mark.slow
def test_missing_and_repeated_steps_are_reported(make_run: MakeRun) -> None:
    shorter = pair_of(make_run("a"), make_run("b", change=lambda rows: rows.__delitem__(slice(12, None))))
    assert shorter.steps == 12 and shorter.reasons
    none = pair_of(make_run("e"), make_run("f", change=lambda rows: rows.clear()))
    assert none.reasons == ["no common steps: torch ddp x2 (e) has steps 1 to 20, torch ddp x2 (f) has none"]
    repeated = pair_of(make_run("c"), make_run("d", change=lambda rows: rows.insert(5, rows[5])))
    assert repeated.reasons


@pytest.mark.slow
def test_the_coarser_precision_decides(make_run: MakeRun) -> None:
    precise = ["train.precision=float64"]
    both = pair_of(make_run("a", *precise), make_run("b", *precise, change=add("loss", 2, 1e-8)))
    assert both.verdict == "diverged" and both.tolerance == TOLERANCES["float64"]
    mixed = pair_of(make_run("c"), make_run("d", *precise))
    assert mixed.tolerance == TOLERANCES["float32"] and mixed.verdict == "not comparable"
    rounded_products = ["train.matmul_precision=bfloat16"]
    rounded = pair_of(make_run("e", *rounded_products), make_run("f", *rounded_products, change=add("loss", 2, 1e-3)))
    assert rounded.tolerance == TOLERANCES["bfloat16"] and rounded.verdict == "lockstep"


def test_an_unfinished_last_line_is_left_out(make_run: MakeRun) -> None:
    a, b = make_run("a"), make_run("b")
    with (b / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "lo')
    comparison = compare_runs([a, b], TOLERANCES)
    assert comparison.verdict == "lockstep"
    assert any("incomplete last line" in note for note in comparison.notes)


def test_a_file_that_cannot_be_read_is_named(make_run: MakeRun) -> None:
    run_dir = make_run("a")
    (run_dir / "evals.jsonl").unlink()
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "metrics.jsonl").symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=r"a/metrics\.jsonl: cannot be read: Input/output error"):
        load_run(run_dir)


def test_a_malformed_row_is_named(make_run: MakeRun) -> None:
    a, b = make_run("a"), make_run("b")
    lines = (b / "metrics.jsonl").read_text().splitlines()
    lines[4] = lines[4].replace('"loss"', '"los"')
    (b / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"b/metrics\.jsonl:5: 'loss' is missing; it must be a number"):
        compare_runs([a, b], TOLERANCES)


@pytest.mark.parametrize(("status", "verdict"), [("running", "lockstep"), ("interrupted", "not comparable")])
def test_a_running_run_is_compared_at_its_steps_so_far(make_run: MakeRun, status: str, verdict: str) -> None:
    whole, part = make_run("a"), make_run("b", change=lambda rows: rows.__delitem__(slice(12, None)), status=status)
    (part / "summary.json").rename(part / "running.json")
    comparison = compare_runs([whole, part], TOLERANCES)
    assert (comparison.verdict, comparison.pairs[0].steps) == (verdict, 12)
    assert not comparison.is_in_lockstep, "it may still diverge"
    assert ("steps so far" in comparison.sentence) == (status == "running")


def test_a_running_run_lacks_no_step_before_its_last(make_run: MakeRun) -> None:
    gap = make_run("b", change=lambda rows: rows.__delitem__(slice(4, 6)), status="running")
    assert "different steps: only torch ddp x2 (a) has steps 5 to 6" in " ".join(pair_of(make_run("a"), gap).reasons)


def test_missing_rows_are_noted(make_run: MakeRun) -> None:
    def remove_rows(rows: list[dict[str, Any]]) -> None:
        del rows[5:15], rows[7]

    (pair,) = (comparison := compare_runs([make_run("a"), make_run("b", change=remove_rows)], TOLERANCES)).pairs
    note = "metrics.jsonl has no rows of steps 6 to 15, and 1 more gaps; they are not compared"
    assert pair.steps == 9 and [text.partition(": ")[2] for text in comparison.notes if "no rows" in text] == [note]
