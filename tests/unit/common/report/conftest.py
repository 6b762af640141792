"""Fixtures that write run directories, shared with the tests of the comparison."""

from tests.unit.common.compare.conftest import config_texts, make_asynchronous, make_dp, make_group, make_run

__all__ = ["config_texts", "make_asynchronous", "make_dp", "make_group", "make_run"]
