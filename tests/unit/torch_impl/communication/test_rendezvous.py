"""Ranks that never come: who is missed is named in one line, in time, and nothing is left running."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.cluster.processes import reserved_ports

ROOT = Path(__file__).parents[4]
TIMEOUT = 2
MEET = r"""
import os, sys
import torch.distributed as dist
from common.errors import UserError
from torch_impl.communication.rendezvous import join_group

for rank in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["RANK"] = rank
        try:
            settings = {"train.seed": int(rank) if "DIFFER" in os.environ else 0}
            joined = join_group(float(os.environ["TIMEOUT"]), settings)
            os.write(1, "rank {} {}\n".format(*joined).encode())  # in one piece
            dist.barrier()
            dist.destroy_process_group()
        except UserError as error:
            os.write(1, f"{error}\n".encode())
        os._exit(0)
for rank in sys.argv[1:]:
    os.wait()
"""


@pytest.fixture
def port() -> int:
    with reserved_ports(1) as ports:
        return ports[0]


def environment(port: int, **values: object) -> dict[str, str]:
    given = {"LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **values}
    return {**os.environ, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in given.items()}}


@pytest.fixture(params=["file", "server"])
def meet(request: pytest.FixtureRequest, tmp_path: Path, port: int) -> Callable[..., list[str]]:
    """What each of the ranks says that come to a group of `world_size`."""

    def come(world_size: int, *ranks: int, timeout: int = TIMEOUT, **more: object) -> list[str]:
        values: dict[str, object] = {"WORLD_SIZE": world_size, "TIMEOUT": timeout, **more}
        if request.param == "file":
            values["LOCKSTEP_RENDEZVOUS"] = tmp_path / "rendezvous"
        return said_by(environment(port, **values), *ranks)

    return come


def said_by(environment: dict[str, str], *ranks: int) -> list[str]:
    command = [sys.executable, "-c", MEET, *map(str, ranks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return sorted(done.stdout.splitlines())


def test_all_come(meet: Callable[..., list[str]]) -> None:
    assert meet(2, 1, 0, timeout=60) == ["rank 0 2", "rank 1 2"]


def test_ranks_whose_settings_differ_are_refused_at_once(meet: Callable[..., list[str]]) -> None:
    difference = "rank 1 differs from rank 0 in train.seed (1, not 0); give every host the same"
    assert meet(3, 1, 0, timeout=60, DIFFER=1) == [difference] * 2


@pytest.mark.parametrize(("ranks", "missing"), [([0], "ranks 1, 2"), ([0, 1], "rank 2")])
def test_the_missing_are_named_by_all_who_came(meet: Callable[..., list[str]], ranks: list[int], missing: str) -> None:
    assert meet(3, *ranks) == [f"cluster.timeout={TIMEOUT}: {missing} of 3 did not come in time"] * len(ranks)


def test_rank_0_is_missing(meet: Callable[..., list[str]]) -> None:
    (said,) = meet(2, 1)
    assert re.match(rf"cluster.timeout={TIMEOUT}: rank 0 (of 2 )?did not come in time( \(127.*refused\))?$", said)


def test_a_port_where_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = said_by(environment(port, WORLD_SIZE=2, TIMEOUT=TIMEOUT), 0, 1)
    assert said[0].startswith(f"MASTER_PORT={port}: cannot listen there (")
    assert said[1] == f"MASTER_PORT={port}: what listens at 127.0.0.1 is not rank 0; give both another port"


@pytest.mark.parametrize(("rank", "missing"), [(0, "ranks 1, 2 of 3"), (1, "rank 0")])
def test_the_command(tmp_path: Path, port: int, rank: int, missing: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torch_impl.train", "strategy=ddp", f"cluster.timeout={TIMEOUT}", "train.steps=2"]
        + [f"run_dir={tmp_path / 'run'}", "data.train_examples=60", "data.validation_examples=12"],
        cwd=tmp_path,
        env=environment(port, RANK=rank, WORLD_SIZE=3),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 2
    assert re.fullmatch(rf"error: cluster\.timeout={TIMEOUT}: {missing} did not come in time.*\n", result.stderr)
    if rank == 0:
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (summary["status"], summary["replicas"], summary["steps"]) == ("failed", 3, 0)
        assert summary["error"] == f"cluster.timeout={TIMEOUT}: {missing} did not come in time"
    else:
        assert not (tmp_path / "run").exists(), "only the chief writes"
