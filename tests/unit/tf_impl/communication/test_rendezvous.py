"""Tests of tasks that never arrive or have other settings: all arrived tasks report it in one line, in time."""

import json
from typing import Any

import pytest

from common.cluster.processes import IS_REPLACEMENT, RUN_TOKEN
from tests.conftest import Python

pytestmark = pytest.mark.slow  # the tests start many processes

TIMEOUT, LONG = 5, 30
JOIN = """
from tf_impl.communication.rendezvous import rendezvous

def join(timeout, settings):
    group = rendezvous(timeout, settings)
    return f"{group.resolver.task_type} {group.resolver.task_id} is rank {group.rank} of {group.world_size}"
"""
ALL = """
import json, os, signal, socket, sys, time
from common.cluster.ports import reserve_ports
from common.errors import UserError

def start(case, task, cluster, leader, given):
    signal.alarm(2 * given["timeout"])  # one that hangs ends without a word
    role, index = task.split()
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": role, "index": int(index)}})
    os.environ.update(given.get("environment", {}))
    time.sleep(given.get("delay", 0))
    try:
        kept = [connect(leader, junk.encode("latin-1")) for junk in given.get("junk", [])]
        refused = kept and is_refused("127.0.0.2", leader)  # the first task listens by now
        began = time.monotonic()
        said = join(given["timeout"], {"train.seed": given.get("seed", 0)})
        said += ", refused elsewhere" if given.get("elsewhere") and refused else ""
    except UserError as error:
        said = f"exit code {error.exit_code}: {error}".replace(str(leader), "PORT")
    except Exception as error:
        said = repr(error)
    line = json.dumps([case, task, said, time.monotonic() - began])
    os.write(1, line.encode() + b"\\n")  # in one piece

def connect(port, junk):
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            connection.sendall(junk)
            return connection

def is_refused(host, port):
    try:
        socket.create_connection((host, port)).close()
    except ConnectionRefusedError:
        return True
    return False

def first_port(cluster):
    return int(cluster.get("chief", cluster["worker"])[0].split(":")[1])

cases, children = json.loads(sys.argv[1]), 0
count = sum(sum(case["cluster"].values()) for case in cases.values())
with reserve_ports(count) as reserved, socket.create_server(("127.0.0.1", 0)) as other:
    ports = iter(reserved)
    for name, case in cases.items():
        cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for role, n in case["cluster"].items()}
        if case.get("taken"):
            cluster["worker"][0] = f"127.0.0.1:{other.getsockname()[1]}"
        for task, given in case["tasks"].items():
            children += 1
            if os.fork() == 0:
                start(name, task, cluster, first_port(cluster), {**case, **given})
                os._exit(0)
    for _ in range(children):
        os.wait()
"""

THREE = {"cluster": {"worker": 3}, "timeout": TIMEOUT}
TWO = {"cluster": {"worker": 2}, "timeout": LONG}
ROLES = {"cluster": {"chief": 1, "ps": 1, "worker": 2}}
# The first lines of unrelated programs, empty and incomplete messages, and a message of a task of another cluster.
JUNK = ["GET / HTTP/1.1\r\n\r\n", "\xff\xfe\n", "\n", "[]\n", '["worker 0"]\n', '["worker 9", {}]\n', "silence"]
ANNOUNCEMENT = '{"name": "worker 1", "settings": {}}\n'
GUESS = '{"hello": "", "name": "worker 1", "settings": {}}\n'
CASES: dict[str, dict[str, Any]] = {
    "all": {**ROLES, "timeout": LONG, "tasks": {"chief 0": {"delay": 0.5}, "ps 0": {}, "worker 0": {}, "worker 1": {}}},
    "the last is missing": {**THREE, "tasks": {"worker 0": {}, "worker 1": {}}},
    "two roles are missing": {**ROLES, "timeout": TIMEOUT, "tasks": {"chief 0": {}, "worker 0": {}}},
    "the first is missing": {**THREE, "tasks": {"worker 1": {}, "worker 2": {}}},
    "another seed": {
        **THREE,
        "timeout": LONG,
        "tasks": {"worker 0": {}, "worker 1": {"seed": 1, "delay": 1}, "worker 2": {}},
    },
    "junk": {**TWO, "tasks": {"worker 0": {}, "worker 1": {"junk": JUNK}}},
    "another interface": {**TWO, "tasks": {"worker 0": {}, "worker 1": {"junk": ["silence"], "elsewhere": True}}},
    "without the token": {
        **TWO,
        "environment": {RUN_TOKEN: "secret"},
        "tasks": {"worker 0": {}, "worker 1": {"junk": [ANNOUNCEMENT, GUESS]}},
    },
    "a number": {**TWO, "timeout": TIMEOUT, "tasks": {"worker 0": {}, "worker 1": {"junk": ["5\n"]}}},
    "a stranger": {**THREE, "tasks": {"worker 0": {}, "worker 1": {"junk": ['["worker 9", {}]\n']}}},
    "restarted": {
        **THREE,
        "timeout": LONG,
        "tasks": {
            "worker 0": {"environment": {IS_REPLACEMENT: "1"}},
            "worker 2": {"environment": {IS_REPLACEMENT: "1"}},
        },
    },
    "the port is taken": {**THREE, "taken": True, "tasks": {"worker 0": {}}},
}
BOTH = {f"worker {index}": f"worker {index} is rank {index} of 2" for index in range(2)}
Said = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def answers(python: Python) -> list[tuple[str, str, str, float]]:
    """Return case, task, text and seconds for each task. All cases run at once, in children of one process."""
    return [json.loads(line) for line in python(JOIN + ALL, json.dumps(CASES)).splitlines()]


@pytest.fixture
def said(answers: list[tuple[str, str, str, float]]) -> Said:
    texts_by_case = {case: dict.fromkeys(options["tasks"], "") for case, options in CASES.items()}
    for case, task, text, _ in answers:
        texts_by_case[case][task] = text
    return texts_by_case


def test_all_arrive(said: Said) -> None:
    ranks = {"chief 0": 0, "ps 0": 1, "worker 0": 2, "worker 1": 3}
    assert said["all"] == {task: f"{task} is rank {rank} of 4" for task, rank in ranks.items()}


@pytest.mark.parametrize(
    ("case", "missing"),
    [
        ("the last is missing", "worker 2 of 3 tasks"),
        ("two roles are missing", "ps 0, worker 1 of 4 tasks"),
        ("the first is missing", "worker 0 (127.0.0.1:PORT)"),
        ("a stranger", "worker 2 of 3 tasks"),
    ],
)
def test_the_missing_are_named_by_all_that_arrived(said: Said, case: str, missing: str) -> None:
    message = f"exit code 1: cluster.timeout={TIMEOUT}: {missing} did not arrive in time"
    assert said[case] == {task: message for task in CASES[case]["tasks"]}


def test_they_wait_for_the_missing_until_the_timeout(answers: list[tuple[str, str, str, float]]) -> None:
    """The first task waits, and the others wait if it is missing. Otherwise they wait for its answer."""
    waited_seconds = {(case, task): seconds for case, task, _, seconds in answers if case.endswith(" missing")}
    waiting = [("the last is missing", "worker 0"), ("two roles are missing", "chief 0")]
    waiting += [("the first is missing", "worker 1"), ("the first is missing", "worker 2")]
    assert min(waited_seconds[each] for each in waiting) >= TIMEOUT


def test_tasks_whose_settings_differ_are_refused_at_once(said: Said) -> None:
    difference = "exit code 2: worker 1 differs from worker 0 in train.seed (1, not 0); use the same on every host"
    assert said["another seed"] == {f"worker {index}": difference for index in range(3)}


def test_what_is_no_task_is_ignored(said: Said) -> None:
    assert said["junk"] == BOTH


def test_tasks_of_one_machine_meet_on_the_loopback_interface(said: Said) -> None:
    """Its other addresses, such as 127.0.0.2, stand for those of its network."""
    assert said["another interface"] == {**BOTH, "worker 1": f"{BOTH['worker 1']}, refused elsewhere"}


def test_a_stranger_that_claims_to_be_a_task_is_ignored(said: Said) -> None:
    """Its announcement has another token than the run, so it gets no answer, which would have the token of the stop."""
    assert said["without the token"] == BOTH


def test_a_number_is_ignored(said: Said) -> None:
    assert said["a number"] == BOTH


def test_a_restarted_task_does_not_wait(answers: list[tuple[str, str, str, float]]) -> None:
    restarted_tasks = {task: text for case, task, text, _ in answers if case == "restarted"}
    assert restarted_tasks.keys() == CASES["restarted"]["tasks"].keys()
    for task, text in restarted_tasks.items():
        assert text == f"{task} is rank {task[-1]} of 3"


def test_a_port_where_something_else_listens(said: Said) -> None:
    text = said["the port is taken"]["worker 0"]
    assert text == "exit code 2: port PORT is in use on this host (Address already in use); choose another port"
