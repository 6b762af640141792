"""Ranks agree on a stop: whichever process is signalled, and whenever, all leave after the same step, which is saved.

`make test-faults` runs one case of each mechanism, `make faults` a third of all cases in each round, and
`make test-faults-all` and `make bench-stops` run all of them.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.two_hosts import TwoHosts
from tests.faults.conftest import ROOT, ROUND, Measured, Run, Start, assert_undisturbed
from tests.faults.stops import ENDLESS, KINDS, on_one_machine, on_two_hosts, under_torchrun

pytestmark = pytest.mark.faults

MATRIX = pytest.mark.matrix
ALL = "STOPS_ALL" in os.environ
THIRDS = 3
IN_CI = {  # one case of each mechanism
    ("on one machine", "ddp", "rank 1"),
    ("on one machine", "multiworker", "worker 1"),
    ("on one machine", "torch-servers", "rank 0"),
    ("in an evaluation", "ddp", "rank 1"),
    ("at start-up", "ddp", "rank 1"),
    ("on two hosts", "ddp", "node 1, 1 s later node 0"),
    ("under torchrun", "ddp", "rank 1, up to 1.5 s later rank 0"),
}

Describe = Callable[[str, str, str], None]

RANKS = {
    "ddp": ("rank 0", "rank 1"),
    "allreduce": ("rank 0", "rank 1", "rank 2"),
    "multiworker": ("worker 0", "worker 1"),
    "torch-servers": ("rank 0", "rank 1", "rank 2"),  # coordinator, server, worker
    "tf-servers": ("chief 0", "ps 0", "worker 0"),
    "torch-servers-async": ("rank 3",),
    "tf-servers-async": ("worker 1",),
}
RESUMED = {"rank 1", "worker 1", "worker 0", "ps 0"}
ON_HOSTS: dict[str, Sequence[tuple[str, float]]] = {
    "node 0": [("node 0", 0)],
    "node 1": [("node 1", 0)],
    "both nodes": [("node 0", 0), ("node 1", 0)],
    "node 0, 1 s later node 1": [("node 0", 0), ("node 1", 1)],
    "node 1, 1 s later node 0": [("node 1", 0), ("node 0", 1)],
}
UNDER_TORCHRUN: dict[str, Sequence[tuple[str, float]]] = {
    "rank 1": [("rank 1", 0)],
    "rank 1, up to 1.5 s later rank 0": [("rank 1", 0), ("rank 0", 1.5)],
    "rank 0, up to 1.5 s later rank 1": [("rank 0", 0), ("rank 1", 1.5)],
    "torchrun": [("torchrun", 0)],
}
numbers = itertools.count()


def case(place: str, kind: str, who: str) -> Any:
    """Return the parameters of a test; None if neither CI nor this round has the case."""
    in_ci = (place, kind, who) in IN_CI
    in_round = next(numbers) % THIRDS == ROUND % THIRDS
    if not (in_ci or in_round or ALL):
        return None
    marks = [pytest.mark.survives(f"SIGTERM to one rank or node {place}"), *([] if in_ci else [MATRIX])]
    return pytest.param(kind, who, id=f"{kind}-{who.replace(' ', '-')}", marks=marks)


def chosen(cases: list[Any]) -> list[Any]:
    return [each for each in cases if each is not None]


@pytest.fixture
def later(moment: int) -> float:
    """Seconds after the moment's step, so that the signal comes anywhere in a step."""
    return float(np.random.default_rng([ROUND, moment]).uniform(0, 0.2))


@pytest.fixture
def describe(record_property: Callable[[str, object], None]) -> Describe:
    """Say of what a test is, for the table that benchmarks.stops makes."""

    def record(kind: str, cluster: str, who: str) -> None:
        for name, value in (("strategy", kind), ("cluster", cluster), ("signalled", who)):
            record_property(name, value)

    return record


@pytest.fixture
def port(request: pytest.FixtureRequest) -> int:
    return 20000 + 50 * next(numbers)


def wait_for_step(run: Run, step: int, later: float) -> None:
    run.at(step)
    time.sleep(later)


def resume(again: list[Run], reached: int, undisturbed: list[dict[str, Any]]) -> None:
    """To the end; the first one is the chief's."""
    said = [run.end() for run in again]
    assert_undisturbed(again[0], undisturbed, said[0])
    assert again[0].summary["resumed_from"] == reached
    assert [run.process.returncode for run in again] == [0] * len(again)


@pytest.mark.parametrize(
    ("kind", "who"),
    chosen([case("on one machine", kind, rank) for kind, ranks in RANKS.items() for rank in ranks]),
)
def test_one_rank(
    start: Start,
    undisturbed: list[dict[str, Any]],
    moment: int,
    later: float,
    describe: Describe,
    measured: Measured,
    kind: str,
    who: str,
) -> None:
    describe(kind, "one machine", who)
    resumed = who in RESUMED and not kind.endswith("async")
    stopping = on_one_machine(start, *KINDS[kind], *([] if resumed else [ENDLESS]))
    wait_for_step(stopping.chief, moment, 0 if resumed else later)
    reached = stopping.assert_agreed(stopping.signal([(who, 0)]), measured)
    assert reached >= moment
    if resumed:
        again = start(*KINDS[kind], "resume=auto", name=stopping.chief.run_dir.name)
        resume([again], reached, undisturbed)


@pytest.mark.parametrize(
    ("kind", "who"),
    chosen(
        [
            case("in an evaluation", "ddp", "rank 1"),
            case("in an evaluation", "allreduce", "rank 2"),
            case("in an evaluation", "multiworker", "worker 1"),
            case("in an evaluation", "torch-servers", "rank 2"),
            case("in an evaluation", "tf-servers", "worker 0"),
        ]
    ),
)
def test_one_rank_in_an_evaluation(
    start: Start, later: float, describe: Describe, measured: Measured, kind: str, who: str
) -> None:
    """There is one after every other step, and it takes longer than the steps."""
    describe(kind, "one machine, in an evaluation", who)
    often = ("train.eval_every=2", "data.validation_examples=1500", ENDLESS)
    stopping = on_one_machine(start, *KINDS[kind], *often)
    wait_for_step(stopping.chief, 6, 3 * later)
    stopping.assert_agreed(stopping.signal([(who, 0)]), measured)


@pytest.mark.parametrize(
    ("kind", "who"),
    chosen([case("at start-up", kind, ranks[-1]) for kind, ranks in RANKS.items() if not kind.endswith("async")]),
)
def test_one_rank_at_start_up(
    start: Start, moment: int, describe: Describe, measured: Measured, kind: str, who: str
) -> None:
    """At any moment until the first step; there may be nothing to save."""
    describe(kind, "one machine, at start-up", who)
    stopping = on_one_machine(start, *KINDS[kind], ENDLESS)
    time.sleep((moment - 12) / 28 * 6)
    stopping.assert_agreed(stopping.signal([(who, 0)]), measured)


@pytest.mark.parametrize(
    ("kind", "who"),
    chosen([case("on two hosts", kind, who) for kind in KINDS if not kind.endswith("async") for who in ON_HOSTS]),
)
def test_two_hosts(
    start: Start,
    hosts: TwoHosts,
    port: int,
    undisturbed: list[dict[str, Any]],
    moment: int,
    later: float,
    describe: Describe,
    measured: Measured,
    kind: str,
    who: str,
) -> None:
    describe(kind, "hosts", who)
    resumed = who == "node 1"
    stopping = on_two_hosts(start, hosts, port, *KINDS[kind], *([] if resumed else [ENDLESS]))
    wait_for_step(stopping.chief, moment, 0 if resumed else later)
    reached = stopping.assert_agreed(stopping.signal(ON_HOSTS[who]), measured)
    assert reached >= moment
    if resumed:
        name = stopping.chief.run_dir.name
        again = on_two_hosts(start, hosts, port + 25, *KINDS[kind], "resume=auto", name=name)
        resume(again.commands, reached, undisturbed)


@pytest.mark.parametrize(
    ("kind", "who"),
    chosen(
        [
            case("under torchrun", kind, who)
            for kind in ("ddp", "allreduce", "torch-servers")
            for who in UNDER_TORCHRUN
            if kind == "ddp" or who in ("rank 1", "rank 1, up to 1.5 s later rank 0")
        ]
    ),
)
def test_torchrun(
    start: Start,
    tmp_path: Path,
    undisturbed: list[dict[str, Any]],
    moment: int,
    later: float,
    describe: Describe,
    measured: Measured,
    kind: str,
    who: str,
) -> None:
    describe(kind, "torchrun", who)
    ranks = {"ddp": 2, "allreduce": 3, "torch-servers": 4}[kind]
    resumed = kind == "ddp" and who == "rank 1"
    stopping = under_torchrun(start, tmp_path, ranks, *KINDS[kind], *([] if resumed else [ENDLESS]))
    wait_for_step(stopping.chief, moment, 0 if resumed else later)
    plan = [(name, delay * later / 0.2) for name, delay in UNDER_TORCHRUN[who]]
    reached = stopping.assert_agreed(stopping.signal(plan), measured)
    assert reached >= moment
    if resumed:
        again = start(*KINDS[kind], "resume=auto", name=stopping.chief.run_dir.name)
        resume([again], reached, undisturbed)


# In all Python processes of a run: ranks do not leave their decisions to the channel.
ALONE = """
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
StopServer.attach = StopMember.attach = lambda self, stop: None
"""


@MATRIX
def test_it_notices_ranks_that_stop_alone(start: Start, tmp_path: Path, moment: int, measured: Measured) -> None:
    """A planted fault: as if the agreement were not there, rank 1 leaves and rank 0 waits for it."""
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    stopping = on_one_machine(start, *KINDS["ddp"], ENDLESS, PYTHONPATH=f"{tmp_path}:{ROOT}")
    wait_for_step(stopping.chief, moment, 0)
    last = stopping.signal([("rank 1", 0)])
    with pytest.raises(AssertionError):
        stopping.assert_agreed(last, measured)


# Worker 1 is signalled when its strategy has been made, and TensorFlow's collectives have taken SIGTERM.
SIGNALLED = """
import os, signal
from common.training.stop import Stop

listen, calls = Stop.listen, []

def listen_signalled(self):
    calls.append(self)
    if len(calls) == 2 and '"index": 1' in os.environ.get("TF_CONFIG", ""):
        os.kill(os.getpid(), signal.SIGTERM)
    listen(self)

Stop.listen = listen_signalled
"""


@MATRIX
def test_a_signal_before_the_loop_is_not_lost(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGNALLED)
    run = start(*KINDS["multiworker"], ENDLESS, PYTHONPATH=f"{tmp_path}:{ROOT}")
    said = run.end(60)
    assert run.process.returncode == 143, said
    assert run.summary["status"] == "interrupted" and len(run.rows) <= 2  # those that the other one had begun


# Each rank leaves the number of collectives that its process group has made.
COUNTED = """
import os
from common.training.loop import Loop

run = Loop.run

def run_and_count(self):
    run(self)
    import torch.distributed as dist
    with open(os.environ["COUNTS"] + os.environ["RANK"], "w") as file:
        file.write(str(dist.group.WORLD._get_sequence_number_for_group()))

Loop.run = run_and_count
"""


@MATRIX
@pytest.mark.parametrize("kind", ["ddp", "allreduce"])
def test_the_agreement_costs_no_collective(start: Start, tmp_path: Path, kind: str) -> None:
    """With the agreement and without it ranks make the same collectives and send the same messages."""
    found: dict[tuple[str, int], tuple[list[int], list[int] | None]] = {}
    for name, code in (("agreed", ""), ("alone", ALONE)):
        for steps in (20, 30):
            place = tmp_path / f"{name}-{steps}"
            place.mkdir()
            (place / "sitecustomize.py").write_text(COUNTED + code)
            environment = {"PYTHONPATH": f"{place}:{ROOT}", "COUNTS": f"{place}/count-"}
            run = start(*KINDS[kind], f"train.steps={steps}", name=f"{kind}-{name}-{steps}", **environment)
            said = run.end()
            assert run.process.returncode == 0, said
            counts = [int(path.read_text()) for path in sorted(place.glob("count-*"))]
            found[name, steps] = counts, run.summary.get("messages_sent")
    for steps in (20, 30):
        assert found["agreed", steps] == found["alone", steps]
        if kind == "allreduce":  # a ring of 3 ranks and 1 bucket, each step
            assert found["agreed", steps][1] == [2 * (3 - 1) * steps] * 3
    assert all(more > less for less, more in zip(found["agreed", 20][0], found["agreed", 30][0], strict=True))
