"""Which workers the coordinator of the parameter servers ends while it waits, in a process of TensorFlow's."""

import json

import pytest

from tests.conftest import Python

WAIT = """
import json
import sys
from contextlib import nullcontext
from threading import Event, Timer
from time import sleep
from types import SimpleNamespace
from unittest.mock import patch
import numpy as np
from tf_impl.strategies.parameter_server import coordinator

workers, arrives, answers = map(json.loads, sys.argv[1:])
rows = np.zeros((len(workers), 5))
rows[:, 4] = workers
event, ended, devices = Event(), [], []
Timer(arrives, event.set).start()

def abort(error_msg):
    ended.append(devices[-1])
    event.set()

def device(name):
    devices.append(name)
    return nullcontext()

class Server(coordinator.ParameterServer):
    def __init__(self):
        self.world_size = 3

    def _rows(self):
        sleep(0 if answers else 60)
        return rows

fake = SimpleNamespace(device=device, raw_ops=SimpleNamespace(Abort=abort), errors=coordinator.tf.errors)
with patch.object(coordinator, "STUCK_SECONDS", 0.5), patch.object(coordinator, "tf", fake):
    try:
        Server()._wait(SimpleNamespace(_status_available_event=event), 4)
    except RuntimeError as error:
        ended.append(str(error))
print(json.dumps(ended))
"""


@pytest.mark.parametrize(
    ("workers", "arrives", "ended"),
    [
        ([1, 0, 2, 0, 2, 2], 2.0, [1]),
        ([0, 0, 0, 0], 2.0, [1, 2]),
        ([0, 1, 2, -1], 1.5, []),  # one that was begun and not ended is no one's
        ([0, 0, 0], 1.5, []),  # of the first updates, which take longest
        ([0, 0, 0, 0], 0.1, []),
    ],
)
def test_those_that_finish_nothing_while_others_do(
    python: Python, workers: list[int], arrives: float, ended: list[int]
) -> None:
    found = json.loads(python(WAIT, workers, arrives, 1))
    assert found == [f"/job:worker/task:{worker}/device:CPU:0" for worker in ended]


@pytest.mark.parametrize(
    ("arrives", "said"), [(2.0, ["no worker has finished an update for 1 s, and no server answers"]), (0.75, [])]
)
def test_servers_that_do_not_answer(python: Python, arrives: float, said: list[str]) -> None:
    """The run does not wait for them, unless the result arrives after all."""
    assert json.loads(python(WAIT, [0, 0, 0, 0], arrives, 0)) == said
