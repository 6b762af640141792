from pathlib import Path

import pytest

from common.compare.find import find_named_runs, find_newest_runs
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
    found, _, _ = find_newest_runs(made[0].parent)
    assert [path.name for path in found] == ["single", "ddp", "mine", "mirrored", "jax"]


def test_a_new_strategy_has_its_place_in_the_list_of_strategies(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fsdp(strategies.StrategySettings):
        sides = {"torch": "torch_impl.strategies.fsdp:FSDP"}

    monkeypatch.setitem(strategies.STRATEGIES, "zz_fsdp", Fsdp)
    made = [make_run("unknown", strategy="unknown"), make_run("fsdp", strategy="zz_fsdp"), make_run("ddp")]
    found, _, _ = find_newest_runs(made[0].parent)
    assert [path.name for path in found] == ["ddp", "fsdp", "unknown"]


def test_each_number_of_replicas_is_found(make_run: MakeRun) -> None:
    made = [make_run(f"x{replicas}", replicas=replicas) for replicas in (10, 2, 4)]
    made.append(make_run("newer x2", replicas=2, started="2026-01-02T00:00:00+00:00"))
    found, errors, notes = find_newest_runs(made[0].parent)
    assert [path.name for path in found] == ["newer x2", "x4", "x10"] and errors == []
    assert notes == [f"1 older of the same kinds left out; `python -m common.compare {made[0].parent}` compares all"]
    assert find_newest_runs(made[0])[2] == []


def test_a_directory_of_runs_stands_for_all_of_them(make_run: MakeRun, tmp_path: Path) -> None:
    """In the order in which a sweep started them, not in that of their names."""
    for seed in range(12):
        make_run(f"sweep/train.seed={seed}", f"train.seed={seed}", started=f"2026-01-01T00:{seed:02}:00+00:00")
    single, elsewhere = make_run("sweep/deeper/single", strategy="single"), make_run("elsewhere")
    found, errors = find_named_runs([elsewhere, tmp_path / "runs/sweep"])
    assert found[:2] == [elsewhere, single] and errors == []
    assert [path.name for path in found[2:]] == [f"train.seed={seed}" for seed in range(12)]


def test_a_run_with_runs_below_it_is_a_run(make_run: MakeRun) -> None:
    run_dir = make_run("a")
    make_run("a/b")
    assert find_named_runs([run_dir]) == ([run_dir], [])


@pytest.mark.parametrize("named", [True, False])
def test_a_run_below_that_was_killed_is_an_error_of_its_own(make_run: MakeRun, named: bool) -> None:
    complete, running = make_run("a"), make_run("b")
    (running / "summary.json").unlink()
    found, errors, *_ = find_named_runs([running.parent]) if named else find_newest_runs(running.parent)
    assert found == [complete] and len(errors) == 1
    assert errors[0].startswith(f"{running}: summary.json is missing: killed before")
