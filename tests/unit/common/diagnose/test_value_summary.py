"""Statistics and histograms of two arrays."""

import numpy as np
import pytest

from common.diagnose.value_summary import BINS, ValueSummary, summarize_values


def statistics_of(summary: ValueSummary) -> dict[str, tuple[float, float]]:
    return {statistic.name: (statistic.a, statistic.b) for statistic in summary.statistics}


def test_statistics_and_counts() -> None:
    a = np.linspace(-1, 1, 60).reshape(3, 20)
    b = a.copy()
    b[1, 4] += 2
    summary = summarize_values(a, b)
    assert summary and (sum(summary.counts_a), sum(summary.counts_b)) == (60, 60)
    assert (summary.low, summary.high) == (-1.0, b[1, 4])
    assert (summary.counts_a[-1], summary.counts_b[-1]) == (0, 1)
    statistics = statistics_of(summary)
    assert statistics["largest difference, at [1, 4]"] == (a[1, 4], b[1, 4])
    assert statistics["largest"] == (1.0, b[1, 4]) and statistics["norm"][0] == np.linalg.norm(a)


def test_infinite_values_are_left_out_of_the_histogram() -> None:
    summary = summarize_values(np.array([1.0, 2.0, 3.0]), np.array([1.0, np.inf, 3.0]))
    assert summary and (sum(summary.counts_a), sum(summary.counts_b)) == (3, 2)
    assert statistics_of(summary)["largest difference, at [1]"] == (2.0, np.inf)
    assert summarize_values(np.array([np.nan]), np.array([1.0])) is None


def test_nan_on_one_side_is_farthest_apart() -> None:
    a, b = np.array([1.0, np.nan, np.inf, 0.0, 5.0]), np.array([1.5, np.nan, np.inf, np.nan, 9.0])
    summary = summarize_values(a, b)
    assert summary and "largest difference, at [3]" in statistics_of(summary)
    b[3] = 0.0
    summary = summarize_values(a, b)
    assert summary and statistics_of(summary)["largest difference, at [4]"] == (5.0, 9.0)


def test_a_constant_and_a_scalar_have_bins_too() -> None:
    summary = summarize_values(np.full(4, 7.0), np.full(4, 7.0))
    assert summary and len(summary.counts_a) == BINS and sum(summary.counts_a) == 4
    scalar = summarize_values(np.array(1.0), np.array(2.0))
    assert scalar and [*statistics_of(scalar)] == ["smallest", "mean", "largest", "norm"]


@pytest.mark.parametrize("b", [[-3.4e38, -np.inf], [-3.4e38, np.nextafter(-3.4e38, 0)]], ids=["one", "neighbours"])
def test_bins_are_wider_than_rounding_errors(b: list[float]) -> None:
    summary = summarize_values(np.full(2, -3.4e38), np.array(b))
    assert summary and sum(summary.counts_a) == 2
