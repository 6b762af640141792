"""Rows are cut at the stops: a block's rate is that of the time in which the contestant ran."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.bench.metrics_rows import MetricsTail, Row, rate_per_second, rows_between_stops


def step_rows(seconds: list[float]) -> list[Row]:
    return [{"step": index, "examples": 32 * index, "seconds": each} for index, each in enumerate(seconds, 1)]


@given(
    step=st.floats(0.01, 0.5),
    group=st.integers(1, 10),
    into=st.floats(0.05, 0.95),
    blocks=st.lists(st.tuples(st.integers(40, 80), st.floats(20, 100)), min_size=2, max_size=4),
)
def test_a_blocks_rate_leaves_the_stops_out(
    step: float, group: int, into: float, blocks: list[tuple[int, float]]
) -> None:
    """A contestant of constant speed, stopped somewhere in a step, that writes groups of rows."""
    seconds: list[float] = []
    stopped_in_all = 0.0
    stops = [(0, 0.0)]  # how many rows were written at each stop, and how long it lasted
    for steps, stopped in blocks:
        running = step * (len(seconds) + steps + into)
        seconds += [step * (index + 1) + stopped_in_all for index in range(len(seconds), len(seconds) + steps)]
        assert seconds[-1] <= running + stopped_in_all
        stops.append((len(seconds) // group * group, stopped))
        stopped_in_all += stopped
    for (before, stopped), (written, _) in pairwise(stops[1:]):
        rows = rows_between_stops(step_rows(seconds)[:written], before, stopped)
        assert len(rows) >= 40 - 2 * group
        assert rate_per_second(rows, "examples") == pytest.approx(32 / step)


def test_a_stop_of_no_time_cuts_nothing_off() -> None:
    rows = step_rows([1, 2, 3, 4, 5])
    assert [row["step"] for row in rows_between_stops(rows, 2, 0.0)] == [3, 4, 5]


def test_a_block_without_a_step_has_no_rows() -> None:
    assert rows_between_stops(step_rows([1, 2, 3]), 3, 10.0) == []
    assert rows_between_stops(step_rows([1, 2, 3, 3.5]), 3, 10.0) == [], "written after the stop, measured before it"


def test_an_incomplete_line_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = MetricsTail(path)
    assert rows.read() == []
    lines = [json.dumps(row) + "\n" for row in step_rows([1, 2])]
    path.write_text(lines[0] + lines[1][:10])
    assert [row["step"] for row in rows.read()] == [1]
    path.write_text("".join(lines))
    assert [row["step"] for row in rows.read()] == [1, 2]
