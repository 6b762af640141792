import pytest

from common.compare.find import newest_runs
from common.config import strategies
from tests.unit.common.compare.conftest import MakeRun


def test_unknown_strategies_and_frameworks_come_last(make_run: MakeRun) -> None:
    made = [
        make_run("jax", framework="jax", strategy="single"),
        make_run("mirrored", framework="tf", strategy="mirrored"),
        make_run("mine", strategy="a strategy of mine"),
        make_run("ddp"),
        make_run("single", strategy="single"),
    ]
    found, _ = newest_runs(made[0].parent)
    assert [path.name for path in found] == ["single", "ddp", "mine", "mirrored", "jax"]


def test_a_new_strategy_has_its_place_in_the_list_of_strategies(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fsdp(strategies.Strategy):
        sides = {"torch": "torch_impl.strategies.fsdp:FSDP"}

    monkeypatch.setitem(strategies.STRATEGIES, "zz_fsdp", Fsdp)
    made = [make_run("unknown", strategy="unknown"), make_run("fsdp", strategy="zz_fsdp"), make_run("ddp")]
    found, _ = newest_runs(made[0].parent)
    assert [path.name for path in found] == ["ddp", "fsdp", "unknown"]
