import json
from pathlib import Path
from typing import Any

import pytest

from common.compare.find import find_newest_runs
from common.compare.pair import Tolerance
from common.compare.runs import load_run
from common.compare.verdict import compare_runs
from common.errors import UserError
from common.report.bars import build_bar_charts
from common.report.json_report import write_json
from common.report.page.render import render_html
from common.report.terminal import print_comparison
from common.report.traffic_tables import build_traffic_tables, describe_savings
from tests.unit.common.compare.conftest import MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}


def test_the_table_has_a_row_for_each_replica(make_dp: MakeRun) -> None:
    (section,) = build_traffic_tables([load_run(make_dp("a"))])
    assert section.columns[2:] == ["scattered", "broadcast", "gathered", "reduced", "logits held", "peak memory"]
    assert section.rows == [
        ["torch dp x2", "0", "0 B", "1.0 MiB", "192 B", "0 B", "384 B", "3.0 MiB"],
        ["torch dp x2", "1", "4.0 KiB", "0 B", "0 B", "1.0 MiB", "0 B", "1.0 MiB"],
    ]
    assert section.sentences == [
        "torch dp x2: replica 0 holds 100% of the logits, the largest peak memory is 1.50x the mean, "
        "replica 1 moves 1.00x the mean bytes."
    ]


def test_what_a_loss_in_forward_saves(make_dp: MakeRun) -> None:
    runs = [load_run(make_dp("a")), load_run(make_dp("b", loss="in_forward", gathered=8))]
    assert describe_savings(runs) == [
        "torch dp in_forward x2 gathers 8 B in a step in place of 192 B of torch dp x2, and replica 0 holds 192 B of "
        "logits in place of 384 B."
    ]
    assert describe_savings(runs[:1]) == []


def test_what_each_rank_sent(make_run: MakeRun) -> None:
    entries = {"strategy": "allreduce", "replicas": 3, "bytes_sent": [2048, 1024, 1024], "messages_sent": [40, 20, 20]}
    run = load_run(make_run("a", "strategy=allreduce", **entries))
    native = load_run(make_run("b", "strategy=allreduce", "strategy.algorithm=native", strategy="allreduce"))
    assert (run.label, native.label) == ("torch allreduce ring x3", "torch allreduce native x2")
    (section,) = build_traffic_tables([run, native])
    assert section.rows[0] == ["torch allreduce ring x3", "0", "2.0 KiB", "40"] and len(section.rows) == 3


def test_what_the_replica_that_holds_the_most_holds(make_run: MakeRun) -> None:
    held = {"parameter_bytes": [512, 1024], "gradient_bytes": [512, 1024], "slot_bytes": [3072, 2048]}
    run = load_run(make_run("a", "strategy=zero", strategy="zero", **held))
    (section,) = build_traffic_tables([run, load_run(make_run("b"))])
    assert section.title == "Held by a replica between steps"
    assert section.rows == [["torch zero x2", "512 B", "512 B", "3.0 KiB", "4.0 KiB"]]


def test_counts_that_a_device_does_not_have(make_dp: MakeRun) -> None:
    rows = [{"step": 1, "gathered": [8, 0], "memory": [None, None]}]
    run = load_run(make_dp("a", traffic=rows))
    (section,) = build_traffic_tables([run])
    assert section.rows[0] == ["torch dp x2", "0", "-", "-", "8 B", "-", "-", "-"]
    assert build_traffic_tables([load_run(make_dp("b", traffic=[]))]) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"step": 2, "gathered": [8]}, "'gathered' must be a list of 2 numbers, found [8]"),
        ({"step": 2, "gathered": [8, "9"]}, "'gathered' must be a list of 2 numbers, found [8, '9']"),
        ({"step": 2}, "'gathered' must be a list of 2 numbers, found None"),
        ({"gathered": [8, 8]}, "a row must be a JSON object with a whole number 'step', found None"),
    ],
)
def test_a_malformed_row_is_named(make_dp: MakeRun, line: dict[str, Any], expected: str) -> None:
    run_dir = make_dp("a", traffic=[{"step": 1, "gathered": [8, 0]}, line])
    with pytest.raises(UserError) as raised:
        load_run(run_dir)
    assert str(raised.value) == f"{run_dir}/traffic.jsonl:2: {expected}"


def test_an_unfinished_last_line_is_left_out(make_dp: MakeRun) -> None:
    run_dir = make_dp("a")
    with (run_dir / "traffic.jsonl").open("a") as file:
        file.write('{"step": 21, "gath')
    assert load_run(run_dir).notes == [f"{run_dir}/traffic.jsonl:21: incomplete last line left out"]


MALFORMED = [("bytes_sent", 3), ("messages_sent", ["a"]), ("staleness", {"x": 1})]
MALFORMED += [("trained_by", value) for value in (3, ["tf"], [{"step": 1}], [{"step": 1, "trained_by": 3}])]
MALFORMED += [("replicas_changed", value) for value in (3, [3], [{"step": 1}], [{"step": 1, "replicas": None}])]


@pytest.mark.parametrize(("key", "value"), MALFORMED)
def test_a_malformed_summary_is_named(make_run: MakeRun, key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"summary.json: '{key}' must "):
        load_run(make_run("a", **{key: value}))


def test_traffic_is_that_of_the_last_number_of_replicas(make_dp: MakeRun) -> None:
    rows = [{"step": step, "gathered": [step] * (3 if step < 8 else 2)} for step in range(1, 10)]
    changed = [{"step": 1, "replicas": 3}, {"step": 8, "replicas": 2}]
    run = load_run(make_dp("a", traffic=rows, replicas_changed=changed))
    assert run.bytes_by_kind["gathered"].tolist() == [[8, 8], [9, 9]]
    assert load_run(make_dp("b", traffic=rows[:7], replicas_changed=changed)).bytes_by_kind == {}


def test_variants_of_a_strategy_are_different_runs(
    make_dp: MakeRun, make_run: MakeRun, make_asynchronous: MakeRun
) -> None:
    run_dirs = [
        make_dp("old"),
        make_dp("new", started="2026-01-02T00:00:00+00:00"),
        make_dp("criterion", loss="criterion"),
    ]
    for algorithm in ("ring", "native"):
        run_dirs.append(
            make_run(algorithm, "strategy=allreduce", f"strategy.algorithm={algorithm}", strategy="allreduce")
        )
    run_dirs += [make_asynchronous("any"), make_asynchronous("zero", "strategy.max_staleness=0")]
    run_dirs.append(make_run("fp16", "strategy=ddp", "strategy.comm_hook=fp16"))
    newest, errors, _ = find_newest_runs(run_dirs[0].parent)
    names = ["new", "criterion", "fp16", "native", "ring", "any", "zero"]
    assert [path.name for path in newest] == names and errors == []
    assert [load_run(path).label.removeprefix("torch ").removesuffix(" x2") for path in newest] == [
        "dp",
        "dp criterion",
        "ddp fp16",
        "allreduce native",
        "allreduce ring",
        "parameter_server",
        "parameter_server synchronous",
    ]


def test_the_report_shows_traffic(make_dp: MakeRun, make_run: MakeRun, tmp_path: Path) -> None:
    held = {"parameter_bytes": [1, 2], "gradient_bytes": [3, 4], "slot_bytes": [5, 6]}
    counts = {"bytes_sent": [2048, 1024], "messages_sent": [4, 2], **held}
    sent = make_run("c", "strategy=allreduce", strategy="allreduce", **counts)
    comparison = compare_runs([make_dp("a"), make_dp("b", loss="in_forward", gathered=8), sent], TOLERANCES)
    charts = {chart.title: chart for chart in build_bar_charts(comparison.runs)}
    assert list(charts)[-3:] == ["Traffic", "Memory of each replica", "Sent by each rank"]
    assert [index for index, _ in charts["Sent by each rank"].groups] == [2]
    assert [(bar.name, bar.text, bar.end) for bar in charts["Memory of each replica"].groups[0][1]] == [
        ("replica 0", "3.0 MiB", 1),
        ("replica 1", "1.0 MiB", pytest.approx(1 / 3)),
    ]
    assert all(0 <= bar.end <= 1 for chart in charts.values() for _, bars in chart.groups for bar in bars)
    path = write_json(comparison, tmp_path)
    assert "torch dp in_forward x2 gathers 8 B in a step" in render_html(comparison)
    report = json.loads(path.read_text())
    assert report["verdict"] == "lockstep"
    assert report["runs"][0]["traffic_per_step"]["gathered"] == [192, 0]
    assert report["runs"][2]["bytes_sent"] == [2048, 1024]
    assert {name: report["runs"][2][name] for name in held} == held


def test_the_terminal_shows_traffic(make_dp: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(compare_runs([make_dp("a")], TOLERANCES))
    shown = capsys.readouterr().out
    assert "Traffic of each replica in a step" in shown and "replica 0 holds 100% of the logits" in shown
