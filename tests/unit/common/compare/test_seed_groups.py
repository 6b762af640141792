"""Groups of runs by everything but the seed, and what is refused."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from common.compare.group_verdict import compare_seeds
from common.compare.margins import parse_margins
from common.compare.options import load_options
from common.compare.runs import Run, load_run
from common.compare.seed_groups import group_runs
from common.compare.verdict import Comparison
from common.errors import UserError
from common.statistics.verdicts import CURVE, DIFFERENT, EQUIVALENT, UNDECIDED
from tests.unit.common.compare.conftest import Load, MakeGroup, MakeRun

FAILED = {"status": "failed", "error": "step 8: the loss is nan; training examples [1, 2]"}


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


@pytest.mark.parametrize(
    ("overrides", "entries", "strategy"),
    [
        (["strategy.comm_hook=powersgd"], {}, "strategy.comm_hook (none | powersgd)"),
        (["strategy.replicas=4"], {"replicas": 4}, "strategy.replicas (2 | 4)"),
    ],
)
def test_a_setting_of_the_strategy_is_one_thing(
    make_group: MakeGroup, overrides: list[str], entries: dict[str, int], strategy: str
) -> None:
    replicas = "strategy=ddp", "strategy.replicas=2"
    base = make_group("base", *replicas, seeds=range(2))
    make_pairs = partial(make_group, seeds=range(2), **entries)
    with pytest.raises(UserError) as raised:
        judge(
            base + make_pairs("both", "strategy=ddp", "strategy.replicas=2", *overrides, "optimizer.learning_rate=0.2")
        )
    message = f"differ in 2 things: the strategy ({strategy}), optimizer.learning_rate (0.0002 | 0.2);"
    assert message in str(raised.value)
    assert judge(base + make_pairs("one", *replicas, *overrides)).verdict == UNDECIDED


def test_other_workers_of_asynchronous_runs_are_another_strategy(make_asynchronous: MakeRun) -> None:
    runs = [
        load_run(
            make_asynchronous(f"{rate}/{seed}", f"train.seed={seed}", f"optimizer.learning_rate={rate}", replicas=n)
        )
        for rate, n in ((0.1, 2), (0.2, 3))
        for seed in range(2)
    ]
    with pytest.raises(UserError, match=r"differ in 2 things: the strategy \(replicas \(2 \| 3\)\), optimizer"):
        judge(runs)


def test_other_epochs_are_not_another_thing(make_group: MakeGroup) -> None:
    """A run records the steps of its epochs, and a warm-up of a sixth of them."""
    steps = ["train.steps=120", "schedule.total_steps=120", "schedule.warmup_steps=20"]
    base = make_group("a", "train.global_batch_size=32", *steps, seeds=range(2))
    steps = ["train.steps=60", "schedule.total_steps=60", "schedule.warmup_steps=10"]
    assert judge(base + make_group("b", "train.global_batch_size=64", *steps, seeds=range(2))).verdict == UNDECIDED
    with pytest.raises(UserError, match=r"2 things: optimizer.learning_rate .*, schedule.total_steps \(120 \| 60\);"):
        judge(base + make_group("c", "train.global_batch_size=32", *steps, "optimizer.learning_rate=1", seeds=range(2)))
    with pytest.raises(UserError, match=r"2 things: schedule.warmup_steps \(20 \| 5\), train.global_batch"):
        steps[-1] = "schedule.warmup_steps=5"
        judge(base + make_group("d", "train.global_batch_size=64", *steps, seeds=range(2)))


def test_another_environment_and_plan_and_rounding_are_noted(make_group: MakeGroup) -> None:
    base = make_group("base", "train.eval_every=2", seeds=range(2))
    entries = {"versions": {"python": "3.12"}, "plan_version": 2}
    other = make_group("new", "train.compile=true", "train.eval_every=4", seeds=range(2), **entries)
    notes = judge(base + other).notes
    assert sum("the environments differ in python (3.11 | 3.12)" in note for note in notes) == 1
    assert any("different batch plans (version 1 | version 2)" in note for note in notes)
    assert any("also differ in train.compile (False | True), which changes" in note for note in notes)


def test_mistakes_are_named(make_group: MakeGroup) -> None:
    base, other = make_group("base"), make_group("other", framework="tf")
    with pytest.raises(UserError, match="only one group of seeds"):
        judge(base)
    with pytest.raises(UserError, match=r"torch ddp x2: only one run, .*base/0; a group needs runs of two seeds"):
        judge(base[:1] + other)
    with pytest.raises(UserError, match="has the seeds 0, 1, 2, 3, tf ddp x2 0, 1, 2, 3, 4; train the seeds 4 in both"):
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


def test_numbers_in_names_of_files_decide_the_pairs(load: Load) -> None:
    def load_group(name: str, numbers: Iterable[int]) -> list[Run]:
        runs = [load(f"{name}-{number}.csv", f"step,loss\n1,{number + 1}\n2,1\n") for number in numbers]
        for run in runs:
            run.label = name
        return runs

    old, new = load_group("old", (10, 2, 1)), load_group("new", (1, 2, 10))
    assert [run.path.name for run in group_runs(old)[0].runs] == ["old-1.csv", "old-2.csv", "old-10.csv"]
    (note,) = (note for note in judge(old + new).notes if "paired" in note)
    assert note.endswith("old-1.csv with " + str(new[0].path) + " first")
    other = load_group("other", (1, 3, 10))
    (note,) = (note for note in judge(load_group("old", (1, 2, 10)) + other).notes if "paired" in note)
    assert note.endswith(f"old-2.csv with {other[1].path} have different numbers, so possibly different seeds")


def test_labels_of_groups_are_unique(make_group: MakeGroup) -> None:
    groups = group_runs(make_group("a/runs", seeds=range(2)) + make_group("b/runs", seeds=range(2)))
    labels = [str(group) for group in groups]
    assert [label.endswith(f"/{name}/runs)") for label, name in zip(labels, "ab", strict=True)] == [True, True]
