"""Numbers and histograms of two arrays."""

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.histogram import BINS, values_of


def test_numbers_and_counts() -> None:
    a = np.linspace(-1, 1, 60).reshape(3, 20)
    b = a.copy()
    b[1, 4] += 2
    found = values_of(a, b)
    assert found and [sum(each) for each in found.counts] == [60, 60]
    assert (found.low, found.high) == (-1.0, b[1, 4]) and found.counts[1][-1] == 1 and found.counts[0][-1] == 0
    numbers = {name: sides for name, *sides in found.numbers}
    assert numbers["farthest apart, at [1, 4]"] == [a[1, 4], b[1, 4]]
    assert numbers["largest"] == [1.0, b[1, 4]] and numbers["norm"][0] == np.linalg.norm(a)


def test_what_is_infinite_is_left_out_of_the_histogram() -> None:
    found = values_of(np.array([1.0, 2.0, 3.0]), np.array([1.0, np.inf, 3.0]))
    assert found and [sum(each) for each in found.counts] == [3, 2]
    assert dict((name, (a, b)) for name, a, b in found.numbers)["farthest apart, at [1]"] == (2.0, np.inf)
    assert values_of(np.array([np.nan]), np.array([1.0])) is None


def test_a_constant_and_a_scalar_have_bins_too() -> None:
    found = values_of(np.full(4, 7.0), np.full(4, 7.0))
    assert found and len(found.counts[0]) == BINS and sum(found.counts[0]) == 4
    scalar = values_of(np.array(1.0), np.array(2.0))
    assert scalar and [name for name, *_ in scalar.numbers] == ["smallest", "mean", "largest", "norm"]


def test_only_what_differs_keeps_its_values() -> None:
    stage = Stage("activations")
    equal, other = np.ones(3), np.array([1.0, 1, 2])
    assert stage.compare("equal", equal, equal).values is None
    assert stage.compare("other", equal, other).values is not None
    assert [each.differs for each in stage.checks] == [False, True]
