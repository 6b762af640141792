"""Tests of the shares of phases, from hand-written traces whose profiled time has 100 units."""

import gzip
import json
from pathlib import Path

import pytest

from common.profile import trace
from common.profile.trace import TraceEvent, read_trace, split_step_time

MAIN, OTHER = 1, 2


def event(name: str, start: float, end: float, tid: int = MAIN, cat: str = "user_annotation") -> TraceEvent:
    return {"ph": "X", "name": name, "cat": cat, "tid": tid, "ts": 1000 + start, "dur": end - start}


TORCH = [
    event("before", -50, -10),
    event("forward", 0, 10),
    event("backward", 10, 45),
    event("MmBackward0", 10, 25, cat="cpu_op"),
    event("aten::mm", 12, 20, cat="cpu_op"),  # within the other
    event("MmBackward0", 25, 30, cat="cpu_op"),
    event("gloo:all_reduce", 20, 38, OTHER),  # hidden until 30, then waited for
    event("gloo:all_reduce", 35, 40, OTHER),
    event("aten::add", 30, 40, OTHER, "cpu_op"),  # of another thread: the main one waits all the same
    event("update", 45, 50),
    event("forward", 60, 75),
    event("backward", 75, 90),
    event("MmBackward0", 75, 90, cat="cpu_op"),
    event("update", 90, 100),
    event("gloo:all_reduce", 100, 120, OTHER),  # after the last update
]
TENSORFLOW = [
    event("_train_step", 0, 100, cat=""),
    event("EagerLocalExecute: __inference__train_step_978", 5, 100, cat=""),
    event("bert/MatMul:_MklMatMul", 10, 30, cat=""),
    event("replica_1/bert/MatMul:_MklMatMul", 30, 50, cat=""),  # of the other replica
    event("gradient_tape/bert/MatMul/MatMul_1:_MklMatMul", 50, 55, OTHER, ""),
    event("PartitionedCall_1/gradients/MatMul_grad/MatMul:_MklMatMul", 55, 70, OTHER, ""),
    event("CollectiveReduceV2_1:CollectiveReduceV2", 60, 80, cat=""),
    event("update/ResourceApplyAdam:ResourceApplyAdam", 90, 110, cat=""),
    event("CollectiveExecutor::RunClosure", 0, 100, cat=""),
]


def test_torch() -> None:
    expected = {"forward": 25, "backward": 35, "update": 15, "reduce, exposed": 10, "reduce, hidden": 10, "other": 15}
    found = split_step_time(TORCH, "torch")
    assert found == pytest.approx({phase: share / 100 for phase, share in expected.items()})


def test_tensorflow() -> None:
    expected = {"forward": 20, "backward": 20, "update": 20, "reduce, exposed": 10, "reduce, hidden": 10, "other": 30}
    found = split_step_time(TENSORFLOW, "tf")
    assert found == pytest.approx({phase: share / 100 for phase, share in expected.items()})


def test_a_rank_that_does_not_train() -> None:
    assert split_step_time([event("aten::mm", 0, 10, cat="cpu_op")], "torch") is None


def test_what_has_no_duration_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    events = [TORCH[1], {**TORCH[2], "dur": 0}, {"ph": "M", "name": "process_name"}]
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    assert read_trace(path) == [TORCH[1]]


def test_a_large_trace_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_BYTES", 1 << 20)
    (tmp_path / "rank-0.json.gz").write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(ValueError, match="has more than 1 MiB"):
        read_trace(tmp_path / "rank-0.json.gz")
    monkeypatch.setattr(trace, "MAX_VALUES", 1000)
    for value in (b"{},", b"[{", b"1,"):
        (tmp_path / "rank-0.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + value * 1000))
        with pytest.raises(ValueError, match="has more than 1,000 values"):
            read_trace(tmp_path / "rank-0.json.gz")
