"""Rows between two stops, from which the rate of a block is computed."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.bench.metrics_rows import MetricsTail, Row, compute_rate, select_rows_after_resume


def step_rows(seconds: list[float]) -> list[Row]:
    return [{"step": index, "examples": 32 * index, "seconds": time} for index, time in enumerate(seconds, 1)]


@given(
    step=st.floats(0.01, 0.5),
    group=st.integers(1, 10),
    progress=st.floats(0.05, 0.95),
    blocks=st.lists(st.tuples(st.integers(40, 80), st.floats(20, 100)), min_size=2, max_size=4),
)
def test_the_rate_of_a_block_does_not_count_the_stops(
    step: float, group: int, progress: float, blocks: list[tuple[int, float]]
) -> None:
    """The contestant has a constant speed, writes rows in groups, and is stopped in the middle of a step."""
    seconds: list[float] = []
    total_stopped = 0.0
    stops = [(0, 0.0)]  # number of rows written at each stop, and seconds of the stop
    for steps, stopped in blocks:
        running = step * (len(seconds) + steps + progress)
        seconds += [step * (index + 1) + total_stopped for index in range(len(seconds), len(seconds) + steps)]
        assert seconds[-1] <= running + total_stopped
        stops.append((len(seconds) // group * group, stopped))
        total_stopped += stopped
    for (before, stopped), (written, _) in pairwise(stops[1:]):
        rows = select_rows_after_resume(step_rows(seconds)[:written], before, stopped)
        assert len(rows) >= 40 - 2 * group
        assert compute_rate(rows, "examples") == pytest.approx(32 / step)


def test_a_stop_of_no_time_removes_no_rows() -> None:
    rows = step_rows([1, 2, 3, 4, 5])
    assert [row["step"] for row in select_rows_after_resume(rows, 2, 0.0)] == [3, 4, 5]


def test_a_block_without_a_step_has_no_rows() -> None:
    assert select_rows_after_resume(step_rows([1, 2, 3]), 3, 10.0) == []
    assert select_rows_after_resume(step_rows([1, 2, 3, 3.5]), 3, 10.0) == [], (
        "written after the stop, measured before it"
    )


def test_an_incomplete_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = MetricsTail(path)
    assert rows.read() == []
    lines = [json.dumps(row) + "\n" for row in step_rows([1, 2])]
    path.write_text(lines[0] + lines[1][:10])
    assert [row["step"] for row in rows.read()] == [1]
    path.write_text("".join(lines))
    assert [row["step"] for row in rows.read()] == [1, 2]
