import pytest

from tests.unit.common.config.conftest import ErrorLine

HOSTS = ["cluster=hosts", "strategy=ddp"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["cluster.timeout=0.5"], "cluster.timeout=0.5: must be at least 1 and finite"),
        (["cluster.timeout=inf"], "cluster.timeout=inf: must be at least 1 and finite"),
        ([*HOSTS, "cluster.hosts=[]", "cluster.node=0"], "cluster.hosts: has no value; give cluster.hosts=..."),
        ([*HOSTS, "cluster.hosts=[a,b]", "cluster.node=2"], "cluster.node=2: there are hosts 0 to 1"),
        ([*HOSTS, "cluster.hosts=[a,b]", "cluster.node=-1"], "cluster.node=-1: must be at least 0"),
        (
            [*HOSTS, "cluster.hosts=[a,a]", "cluster.node=0"],
            "cluster.hosts: a host is named twice; name each once, and raise the replicas",
        ),
        (
            [*HOSTS, "cluster.hosts=[a,b]", "cluster.node=0", "cluster.port=80"],
            "cluster.port=80: must be at least 1024 and at most 65000",
        ),
        (
            [*HOSTS, "cluster.hosts=[a,b]", "cluster.node=0", "cluster.port=65001"],
            "cluster.port=65001: must be at least 1024 and at most 65000",
        ),
    ],
)
def test_wrong_values_are_refused(error_line: ErrorLine, overrides: list[str], expected: str) -> None:
    assert error_line(*overrides).startswith(expected)
