"""Groups of runs by everything but the seed, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.compare.group_verdict import compare_seeds
from common.compare.margins import parse_margins
from common.compare.options import load_options
from common.compare.runs import Run, load_run
from common.compare.seed_groups import group_runs
from common.compare.verdict import Comparison
from common.errors import UserError
from common.statistics.verdicts import CURVE, DIFFERENT, EQUIVALENT, UNDECIDED
from tests.unit.common.compare.conftest import Load, MakeRun

MakeGroup = Callable[..., list[Run]]
FAILED = {"status": "failed", "error": "step 8: the loss is nan; training examples [1, 2]"}


@pytest.fixture
def make_group(make_run: MakeRun) -> MakeGroup:
    """Return a function that writes runs of some seeds. The seed and the step decide the noise of the losses."""

    def make(name: str, *overrides: str, seeds: range = range(5), shift: float = 0.0, **entries: Any) -> list[Run]:
        def change(rows: list[dict[str, Any]], seed: int) -> None:
            for row in rows:
                row["loss"] += 0.01 * ((7 * seed + 3 * row["step"]) % 5) + 0.02 * seed + shift * (1 + seed / 50)

        paths = [
            make_run(
                f"{name}/{seed}",
                *overrides,
                f"train.seed={seed}",
                change=lambda rows, seed=seed: change(rows, seed),
                **entries,
            )
            for seed in seeds
        ]
        return [load_run(path) for path in paths]

    return make


def judge(runs: list[Run], margin: str = "0.5sd") -> Comparison:
    return compare_seeds(runs, load_options().tolerances, parse_margins(margin, {}))


def test_runs_are_grouped_by_everything_but_the_seed(make_group: MakeGroup) -> None:
    slow, fast = make_group("a", "optimizer.learning_rate=0.1"), make_group("b", "optimizer.learning_rate=0.2")
    mixed = [run for pair in zip(slow, fast[::-1], strict=True) for run in pair]
    groups = group_runs(mixed)
    assert [group.runs for group in groups] == [slow, fast] and groups[0].seeds == [0, 1, 2, 3, 4]
    assert [str(group) for group in groups] == [
        f"torch ddp x2 (optimizer.learning_rate={rate})" for rate in ("0.1", "0.2")
    ]


def test_runs_of_one_config_are_grouped_by_directory(make_group: MakeGroup) -> None:
    groups = group_runs(make_group("old") + make_group("new"))
    assert [str(group) for group in groups] == ["torch ddp x2 (old)", "torch ddp x2 (new)"]


def test_the_verdict_on_equal_and_on_shifted_groups(make_group: MakeGroup) -> None:
    base = make_group("base")
    equal = judge(base + make_group("tf", framework="tf"))
    assert equal.verdict == EQUIVALENT and equal.passes_check and len(equal.pairs) == 5
    shifted = judge(base + make_group("shifted", framework="tf", shift=0.1))
    assert shifted.verdict == DIFFERENT and not shifted.passes_check
    assert "is 0.1 higher (95 % interval" in shifted.sentence and "over 5 seeds" in shifted.sentence
    assert judge(base + make_group("within", framework="tf", shift=0.01), "0.05").verdict == EQUIVALENT
    few = judge(base[:2] + make_group("few", framework="tf", seeds=range(2)))
    assert few.verdict == UNDECIDED and "would settle it" in few.sentence


def test_asynchronous_runs_are_compared_after_equal_examples(make_asynchronous: MakeRun, make_group: MakeGroup) -> None:
    workers = [load_run(make_asynchronous(f"ps/{seed}", f"train.seed={seed}")) for seed in range(5)]
    (result,) = judge(make_group("ddp") + workers).group_comparisons
    assert result.judgement.metrics[CURVE].values.contestant == pytest.approx([1.005] * 5)
    assert result.time_to_loss is not None and result.time_to_loss.unit == "example"


@pytest.mark.parametrize("is_external", [False, True])
def test_a_seed_that_diverged_is_named_and_different(make_group: MakeGroup, load: Load, is_external: bool) -> None:
    if is_external:
        rows = [{"step": step, "loss": "NaN" if step == 8 else 1} for step in range(1, 21)]
        text = "step,loss\n" + "".join(f"{row['step']},{row['loss']}\n" for row in rows)
        runs = [
            load(f"{name}.csv", text if name == "b1" else text.replace("NaN", "1")) for name in ("a0", "a1", "b0", "b1")
        ]
        for run in runs:
            run.label = run.path.name[0]
        name, reason = "b1.csv", "its loss is not finite at step 8"
    else:
        runs = make_group("a", seeds=range(3)) + make_group("b", framework="tf", seeds=range(2))
        runs += make_group("b", framework="tf", seeds=range(2, 3), **FAILED)
        name, reason = "seed 2", "step 8: the loss is nan"
    comparison = judge(runs)
    assert comparison.verdict == DIFFERENT and "is not finite in one run of" in comparison.sentence
    results = comparison.group_comparisons[0].judgement.metrics
    assert all(result.verdict == DIFFERENT and result.shift is None for result in results.values())
    assert any(f"{name} of " in note and reason in note for note in comparison.notes)


def test_one_thing_may_differ(make_group: MakeGroup) -> None:
    base = make_group("base")
    other = make_group("other", "optimizer.learning_rate=0.2", framework="tf", strategy="mirrored")
    with pytest.raises(
        UserError, match=r"differ in 2 things: the strategy \(torch ddp \| tf mirrored\), optimizer.learn"
    ):
        judge(base + other)
    assert judge(base + make_group("sgd", "optimizer=sgd")).verdict == EQUIVALENT, "its momentum is not another thing"
    relabelled = {"token_cache": "u", "initial_weights": "w"}
    assert judge(base + make_group("data", fingerprints=relabelled)).verdict == EQUIVALENT
    with pytest.raises(UserError, match="the content of the data"):
        judge(base + make_group("both", framework="tf", fingerprints=relabelled))


def test_mistakes_are_named(make_group: MakeGroup) -> None:
    base, other = make_group("base"), make_group("other", framework="tf")
    with pytest.raises(UserError, match="only one group of seeds"):
        judge(base)
    with pytest.raises(UserError, match=r"torch ddp x2: only one run, .*base/0; a group needs runs of two seeds"):
        judge(base[:1] + other)
    with pytest.raises(UserError, match="has the seeds 0, 1, 2, 3, tf ddp x2 0, 1, 2, 3, 4; train 4 in both"):
        judge(base[:-1] + other)
    copy = base[0].path.with_name("copy")
    copy.mkdir()
    for file in base[0].path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match=r"base/0 and .*base/copy: both have train.seed=0"):
        judge([*base, load_run(copy), *other])
    with pytest.raises(UserError, match="no such metric; the runs have curve, final_loss, validation_loss, accuracy"):
        compare_seeds(base + other, load_options().tolerances, parse_margins("1", {"f1": "1"}))


@pytest.mark.parametrize("entries", [{"status": "failed", "error": "out of memory"}, {"status": "interrupted"}])
def test_a_run_that_failed_for_another_reason_is_no_result(make_group: MakeGroup, entries: dict[str, str]) -> None:
    with pytest.raises(UserError, match=f"status {entries['status']}.*; let it end with resume=auto"):
        judge(make_group("base", seeds=range(2)) + make_group("other", framework="tf", seeds=range(2), **entries))


@pytest.mark.parametrize("text", ["", "x", "-1", "1 %", "sd", "nan"])
def test_a_margin_is_a_number(text: str) -> None:
    with pytest.raises(UserError, match="margins.accuracy=.*: must be a number such as 0.01"):
        parse_margins("0.5sd", {"accuracy": text})


def test_margins_of_metrics(make_group: MakeGroup, tmp_path: Path) -> None:
    options = load_options(["margin=2", "++margins.accuracy=1e-3"])
    margins = parse_margins(options.margin, options.margins)
    comparison = compare_seeds(make_group("a") + make_group("b", framework="tf"), options.tolerances, margins)
    results = comparison.group_comparisons[0].judgement.metrics
    assert {name: result.margin for name, result in results.items()} == dict.fromkeys(results, 2.0) | {"accuracy": 1e-3}
