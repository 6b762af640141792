"""The run directories of the comparison's tests."""

from tests.unit.common.compare.conftest import make_asynchronous, make_dp, make_run

__all__ = ["make_asynchronous", "make_dp", "make_run"]
