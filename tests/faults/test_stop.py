"""Agreement of ranks on a stop: after a signal to any process at any moment, all ranks save and end at the same step.

`make test-faults` runs one case of each mechanism. `make faults` runs a third of all cases in each round.
`make test-faults-all` and `make bench-stops` run all cases.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.two_hosts import TwoHosts
from tests.faults.conftest import FIRST_FAULT_STEP, ROOT, ROUND, RecordFigures, Run, Start, assert_same_curve
from tests.faults.stops import ENDLESS, KINDS, Stopping, start_on_one_machine, start_on_two_hosts, start_under_torchrun

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
StartStopping = Callable[..., Stopping]

RANKS = {
    "ddp": ("rank 0", "rank 1"),
    "allreduce": ("rank 0", "rank 1", "rank 2"),
    "multiworker": ("worker 0", "worker 1"),
    "torch-servers": ("rank 0", "rank 1", "rank 2"),  # coordinator, server, worker
    "tf-servers": ("chief 0", "ps 0", "worker 0"),
    "torch-servers-async": ("rank 3",),
    "tf-servers-async": ("worker 1",),
}
RANK_COUNTS = {"ddp": 2, "allreduce": 3, "torch-servers": 4}
RESUMED = {"rank 1", "worker 0", "ps 0"}  # the tests that signal these also resume the run
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


def make_case(place: str, kind: str, target: str) -> Any:
    """Return the parameters of a test; None if neither CI nor this round has the case."""
    in_ci = (place, kind, target) in IN_CI
    in_round = next(numbers) % THIRDS == ROUND % THIRDS
    if not (in_ci or in_round or ALL):
        return None
    marks = [pytest.mark.survives(f"SIGTERM to one rank or node {place}"), *([] if in_ci else [MATRIX])]
    return pytest.param(kind, target, id=f"{kind}-{target.replace(' ', '-')}", marks=marks)


def select_cases(cases: list[Any]) -> list[Any]:
    """Return the cases that this session has."""
    return [case for case in cases if case is not None]


class Moment(NamedTuple):
    """The moment of the first signal."""

    step: int
    delay: float  # seconds after the step is recorded, so that the signal comes at any point of a step


@pytest.fixture
def moment(fault_step: int) -> Moment:
    """The moment of the first signal. It depends on the test and the round."""
    return Moment(fault_step, float(np.random.default_rng([ROUND, fault_step]).uniform(0, 0.2)))


@pytest.fixture
def describe(record_property: Callable[[str, object], None]) -> Describe:
    """Record the case of a test for the table of benchmarks.stops."""

    def record(kind: str, cluster: str, target: str) -> None:
        for name, value in (("strategy", kind), ("cluster", cluster), ("signalled", target)):
            record_property(name, value)

    return record


@pytest.fixture
def start_stopping_hosts(start: Start, hosts: TwoHosts) -> StartStopping:
    """Start a run on two hosts. Each run gets its own ports of the hosts, which only the tests use."""
    return lambda *overrides, **options: start_on_two_hosts(
        start, hosts, 20000 + 25 * next(numbers), *overrides, **options
    )


@pytest.fixture
def start_stopping_torchrun(start: Start, tmp_path: Path) -> StartStopping:
    """Start a run with torchrun. Its number of ranks follows from its kind."""
    return lambda kind, *overrides: start_under_torchrun(start, tmp_path, RANK_COUNTS[kind], *KINDS[kind], *overrides)


def wait_past_step(run: Run, step: int, delay: float) -> None:
    """Wait until a step is recorded, and then for the delay in seconds. The signal may come at any moment."""
    run.wait_for_step(step)
    time.sleep(delay)


def assert_resumed(commands: list[Run], reached: int, reference_rows: list[dict[str, Any]]) -> None:
    """Check that the resumed run completes from the reached step. The first command is the command of the chief."""
    outputs = [run.wait_for_end() for run in commands]
    assert_same_curve(commands[0], reference_rows, outputs[0])
    assert commands[0].summary["resumed_from"] == reached
    assert [run.process.returncode for run in commands] == [0] * len(commands)


@pytest.mark.parametrize(
    ("kind", "target"),
    select_cases([make_case("on one machine", kind, rank) for kind, ranks in RANKS.items() for rank in ranks]),
)
def test_one_rank(
    start: Start,
    reference_rows: list[dict[str, Any]],
    moment: Moment,
    describe: Describe,
    record_figures: RecordFigures,
    kind: str,
    target: str,
) -> None:
    describe(kind, "one machine", target)
    is_resumed = target in RESUMED and not kind.endswith("async")
    stopping = start_on_one_machine(start, *KINDS[kind], *([] if is_resumed else [ENDLESS]))
    wait_past_step(stopping.chief, moment.step, 0 if is_resumed else moment.delay)
    reached = stopping.assert_agreed(stopping.signal([(target, 0)]), record_figures)
    assert reached >= moment.step
    if is_resumed:
        resumed = start(*KINDS[kind], "resume=auto", name=stopping.chief.run_dir.name)
        assert_resumed([resumed], reached, reference_rows)


@pytest.mark.parametrize(
    ("kind", "target"),
    select_cases(
        [
            make_case("in an evaluation", "ddp", "rank 1"),
            make_case("in an evaluation", "allreduce", "rank 2"),
            make_case("in an evaluation", "multiworker", "worker 1"),
            make_case("in an evaluation", "torch-servers", "rank 2"),
            make_case("in an evaluation", "tf-servers", "worker 0"),
        ]
    ),
)
def test_one_rank_in_an_evaluation(
    start: Start, moment: Moment, describe: Describe, record_figures: RecordFigures, kind: str, target: str
) -> None:
    """Evaluate after every other step, for longer than the steps take."""
    describe(kind, "one machine, in an evaluation", target)
    corpus = ("model=bert_tiny", "data.train_examples=300", "data.validation_examples=1500")
    stopping = start_on_one_machine(start, *KINDS[kind], *corpus, "train.eval_every=2", ENDLESS)
    wait_past_step(stopping.chief, 6, 3 * moment.delay)
    stopping.assert_agreed(stopping.signal([(target, 0)]), record_figures)


@pytest.mark.parametrize(
    ("kind", "target"),
    select_cases(
        [make_case("at start-up", kind, ranks[-1]) for kind, ranks in RANKS.items() if not kind.endswith("async")]
    ),
)
def test_one_rank_at_start_up(
    start: Start, fault_step: int, describe: Describe, record_figures: RecordFigures, kind: str, target: str
) -> None:
    """Any moment is right: before the first step there may be nothing to save."""
    describe(kind, "one machine, at start-up", target)
    stopping = start_on_one_machine(start, *KINDS[kind], ENDLESS)
    time.sleep((fault_step - FIRST_FAULT_STEP) / 3)
    stopping.assert_agreed(stopping.signal([(target, 0)]), record_figures)


@pytest.mark.parametrize(
    ("kind", "target"),
    select_cases(
        [make_case("on two hosts", kind, target) for kind in KINDS if not kind.endswith("async") for target in ON_HOSTS]
    ),
)
def test_two_hosts(
    start_stopping_hosts: StartStopping,
    reference_rows: list[dict[str, Any]],
    moment: Moment,
    describe: Describe,
    record_figures: RecordFigures,
    kind: str,
    target: str,
) -> None:
    describe(kind, "hosts", target)
    is_resumed = target == "node 1"
    stopping = start_stopping_hosts(*KINDS[kind], *([] if is_resumed else [ENDLESS]))
    wait_past_step(stopping.chief, moment.step, 0 if is_resumed else moment.delay)
    reached = stopping.assert_agreed(stopping.signal(ON_HOSTS[target]), record_figures)
    assert reached >= moment.step
    if is_resumed:
        name = stopping.chief.run_dir.name
        resumed = start_stopping_hosts(*KINDS[kind], "resume=auto", name=name)
        assert_resumed(resumed.commands, reached, reference_rows)


@pytest.mark.parametrize(
    ("kind", "target"),
    select_cases(
        [
            make_case("under torchrun", kind, target)
            for kind in ("ddp", "allreduce", "torch-servers")
            for target in UNDER_TORCHRUN
            if kind == "ddp" or target in ("rank 1", "rank 1, up to 1.5 s later rank 0")
        ]
    ),
)
def test_torchrun(
    start: Start,
    start_stopping_torchrun: StartStopping,
    reference_rows: list[dict[str, Any]],
    moment: Moment,
    describe: Describe,
    record_figures: RecordFigures,
    kind: str,
    target: str,
) -> None:
    describe(kind, "torchrun", target)
    is_resumed = kind == "ddp" and target == "rank 1"
    stopping = start_stopping_torchrun(kind, *([] if is_resumed else [ENDLESS]))
    wait_past_step(stopping.chief, moment.step, 0 if is_resumed else moment.delay)
    plan = [(name, seconds * moment.delay / 0.2) for name, seconds in UNDER_TORCHRUN[target]]
    reached = stopping.assert_agreed(stopping.signal(plan), record_figures)
    assert reached >= moment.step
    if is_resumed:
        resumed = start(*KINDS[kind], "resume=auto", name=stopping.chief.run_dir.name)
        assert_resumed([resumed], reached, reference_rows)


# In all Python processes of a run: ranks decide alone, without the stop channel.
ALONE = """
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
StopServer.attach = StopMember.attach = lambda self, stop: None
"""


@MATRIX
def test_ranks_that_stop_alone_are_noticed(
    start: Start, tmp_path: Path, fault_step: int, record_figures: RecordFigures
) -> None:
    """Plant a fault: without an agreement, rank 1 stops and rank 0 waits for it."""
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    stopping = start_on_one_machine(start, *KINDS["ddp"], ENDLESS, PYTHONPATH=f"{tmp_path}:{ROOT}")
    wait_past_step(stopping.chief, fault_step, 0)
    last = stopping.signal([("rank 1", 0)])
    with pytest.raises(AssertionError):
        stopping.assert_agreed(last, record_figures)


# Worker 1 receives the signal after its strategy is built, when TensorFlow's collectives have replaced the handler.
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
    output = run.wait_for_end()
    assert run.process.returncode == 143, output
    assert (
        run.summary["status"] == "interrupted" and len(run.rows) <= 2
    )  # at most the steps that the other worker had begun


# Each rank writes the number of collectives of its process group to a file.
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
    """Ranks run the same collectives and send the same messages with and without the agreement."""
    traffic: dict[tuple[str, int], tuple[list[int], list[int] | None]] = {}
    for name, code in (("agreed", ""), ("alone", ALONE)):
        for steps in (20, 30):
            directory = tmp_path / f"{name}-{steps}"
            directory.mkdir()
            (directory / "sitecustomize.py").write_text(COUNTED + code)
            environment = {"PYTHONPATH": f"{directory}:{ROOT}", "COUNTS": f"{directory}/count-"}
            run = start(*KINDS[kind], f"train.steps={steps}", name=f"{kind}-{name}-{steps}", **environment)
            output = run.wait_for_end()
            assert run.process.returncode == 0, output
            counts = [int(path.read_text()) for path in sorted(directory.glob("count-*"))]
            traffic[name, steps] = counts, run.summary.get("messages_sent")
    for steps in (20, 30):
        assert traffic["agreed", steps] == traffic["alone", steps]
        if kind == "allreduce":  # a ring of 3 ranks with 1 bucket, in each step
            assert traffic["agreed", steps][1] == [2 * (3 - 1) * steps] * 3
    assert all(more > less for less, more in zip(traffic["agreed", 20][0], traffic["agreed", 30][0], strict=True))
