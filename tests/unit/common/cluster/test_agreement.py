import pytest

from common.cluster.agreement import check_host, disagreement, interface_of, must_agree
from common.cluster.topology import place
from common.errors import UserError
from common.prepare import prepare
from tests.conftest import MakeConfig


def test_only_what_decides_the_training_must_agree(small_config: MakeConfig) -> None:
    config = small_config("strategy=ddp")
    _, initial = prepare(config)
    mine = must_agree(config, initial)
    other = small_config("strategy=ddp", "run_dir=elsewhere", "cluster.timeout=5", "train.log_every=1")
    assert disagreement("rank 1", must_agree(other, initial), "rank 0", mine) is None
    other = small_config("strategy=ddp", "train.steps=7", "data.seed=5", "model.layers=2")
    _, initial = prepare(other)
    assert disagreement("rank 1", must_agree(other, initial), "rank 0", mine) == (
        f"rank 1 differs from rank 0 in model.layers (2, not 1), train.steps (7, not {config.train.steps}), data, "
        "initial weights; give every host the same"
    )


def test_what_only_one_has_need_not_agree() -> None:
    assert disagreement("ps 0", {}, "chief 0", {"train.seed": 0}) is None


@pytest.mark.parametrize("host", ["203.0.113.1", "127.0.0.1", "localhost"])
def test_a_host_must_have_its_address_in_a_network(host: str) -> None:
    with pytest.raises(UserError, match=rf"^cluster.node: {host}.* is no address of this machine in a network"):
        interface_of(host)


def test_only_a_run_on_several_hosts_needs_an_address(small_config: MakeConfig) -> None:
    check_host(small_config("strategy=ddp"), "torch")


def test_workers_and_servers_are_on_different_hosts() -> None:
    tasks = place(["a", "b"], {"chief": 1, "ps": 1, "worker": 1}, range(1, 10))
    assert [(task.role, task.node, task.address) for task in tasks] == [
        ("chief", 0, "a:1"),
        ("ps", 0, "a:2"),
        ("worker", 1, "b:1"),
    ]
