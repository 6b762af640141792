"""Tests of the reports that docs/gallery gives."""

import numpy as np
import pytest

from benchmarks.gallery import GALLERY, REPORTS
from common.compare.find import find_named_runs
from common.compare.options import load_options
from common.compare.runs import load_runs
from common.compare.verdict import Comparison, compare
from common.config.saved_config import read_flat_values
from common.report.page.render import render_html
from tests.conftest import ROOT


def compare_gallery(name: str) -> Comparison:
    run_dirs, left_out = find_named_runs([ROOT / GALLERY / name])
    runs, unreadable = load_runs(run_dirs)
    assert left_out + unreadable == []
    return compare(runs, load_options().tolerances)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict", "count"),
    [
        ("agreement", "lockstep", 6),
        ("asynchrony", "not comparable", 4),
        ("diverging_port", "diverged", 2),
        ("memory", "lockstep", 4),
    ],
)
def test_every_report_shows_its_verdict(name: str, verdict: str, count: int) -> None:
    comparison = compare_gallery(name)
    assert (comparison.verdict, len(comparison.runs)) == (verdict, count)
    page = render_html(comparison)
    assert 100_000 < len(page) < 5_000_000


def test_the_configs_contain_no_absolute_paths() -> None:
    for path in (ROOT / GALLERY).glob("*/*/config.yaml"):
        config = read_flat_values(path)
        assert [value for value in config.values() if str(value).startswith("/")] == []


def test_every_report_is_described() -> None:
    assert sorted(REPORTS) == sorted(path.name for path in (ROOT / GALLERY).iterdir())
    described = (ROOT / "docs/report.md").read_text()
    assert all(f"| `{name}` |" in described for name in REPORTS)


@pytest.mark.slow
def test_more_workers_are_more_stale_and_dp_loads_its_first_replica() -> None:
    stale = {
        run.replicas: np.average(list(run.staleness), weights=list(run.staleness.values()))
        for run in compare_gallery("asynchrony").runs
        if run.is_asynchronous
    }
    assert stale[1] == 0 < stale[2] < stale[4]
    for run in compare_gallery("memory").runs:
        if run.strategy == "dp":
            first, *others = run.get_traffic_per_step("logits")
            assert first > max(others)
