from pathlib import Path
from typing import ClassVar

import pytest

from common.compare.find import find_named_runs, find_newest_runs
from common.config import strategies
from tests.unit.common.compare.conftest import MakeRun


def test_unknown_strategies_and_frameworks_come_last(make_run: MakeRun) -> None:
    run_dirs = [
        make_run("jax", framework="jax", strategy="single"),
        make_run("mirrored", framework="tf", strategy="mirrored"),
        make_run("mine", strategy="a strategy of mine"),
        make_run("ddp"),
        make_run("single", strategy="single"),
    ]
    newest, _, _ = find_newest_runs(run_dirs[0].parent)
    assert [path.name for path in newest] == ["single", "ddp", "mine", "mirrored", "jax"]


def test_a_new_strategy_has_its_place_in_the_list_of_strategies(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fsdp(strategies.StrategySettings):
        sides: ClassVar[dict[str, str]] = {"torch": "torch_impl.strategies.fsdp:FSDP"}

    monkeypatch.setitem(strategies.STRATEGIES, "zz_fsdp", Fsdp)
    run_dirs = [make_run("unknown", strategy="unknown"), make_run("fsdp", strategy="zz_fsdp"), make_run("ddp")]
    newest, _, _ = find_newest_runs(run_dirs[0].parent)
    assert [path.name for path in newest] == ["ddp", "fsdp", "unknown"]


def test_each_number_of_replicas_is_found(make_run: MakeRun) -> None:
    run_dirs = [make_run(f"x{replicas}", replicas=replicas) for replicas in (10, 2, 4)]
    run_dirs.append(make_run("newer x2", replicas=2, started="2026-01-02T00:00:00+00:00"))
    newest, errors, notes = find_newest_runs(run_dirs[0].parent)
    assert [path.name for path in newest] == ["newer x2", "x4", "x10"] and errors == []
    assert notes == [
        f"older runs of the same kinds are left out (1); `python -m common.compare {run_dirs[0].parent}` compares all"
    ]
    assert find_newest_runs(run_dirs[0])[2] == []


@pytest.mark.slow
def test_a_directory_of_runs_stands_for_all_of_them(make_run: MakeRun, tmp_path: Path) -> None:
    """The runs of a sweep are ordered by their start, not by their names."""
    for seed in range(12):
        make_run(f"sweep/train.seed={seed}", f"train.seed={seed}", started=f"2026-01-01T00:{seed:02}:00+00:00")
    single, other = make_run("sweep/deeper/single", strategy="single"), make_run("other")
    run_paths, errors = find_named_runs([other, tmp_path / "runs/sweep"])
    assert run_paths[:2] == [other, single] and errors == []
    assert [path.name for path in run_paths[2:]] == [f"train.seed={seed}" for seed in range(12)]


def test_a_run_with_runs_below_it_is_a_run(make_run: MakeRun) -> None:
    run_dir = make_run("a")
    make_run("a/b")
    assert find_named_runs([run_dir]) == ([run_dir], [])


@pytest.mark.parametrize("named", [True, False])
def test_a_killed_run_in_a_directory_of_runs_is_one_error(make_run: MakeRun, named: bool) -> None:
    complete, running = make_run("a"), make_run("b")
    (running / "summary.json").unlink()
    run_paths, errors, *_ = find_named_runs([running.parent]) if named else find_newest_runs(running.parent)
    assert run_paths == [complete] and len(errors) == 1
    assert errors[0].startswith(f"{running}: summary.json is missing: killed before")
