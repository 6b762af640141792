"""Tests of the rank under which a process is recorded."""

import pytest

from torch_impl.record.environment import find_rank


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, (0, 1)), ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)), ({"RANK": "0"}, (0, 1))],
)
def test_the_variables_of_torchrun(
    variables: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_rank() == expected


@pytest.mark.parametrize(("rank", "world_size"), [("first", "2"), ("", "1"), ("-1", "2"), ("3", "1"), ("0", "many")])
def test_other_values_are_one_process_with_a_warning(
    rank: str, world_size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.warns(RuntimeWarning, match=f"RANK={rank} is not a rank of WORLD_SIZE={world_size} processes"):
        assert find_rank() == (0, 1)
