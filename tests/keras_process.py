"""A TensorFlow process that runs the scripts of many tests, because TensorFlow takes 6 seconds of CPU time to start."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Libraries write to file descriptor 1 as well, so that answers take another one.
RUNNER = """
import contextlib, io, json, os, sys, traceback
from common.cluster.processes import pause_garbage_collection
from common.hidden_packages import hide_packages_of_keras
hide_packages_of_keras()
with pause_garbage_collection():  # clear_session collects garbage
    import keras
    import tensorflow as tf

cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, 3 * [tf.config.LogicalDeviceConfiguration()])  # possible only once
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    code, *sys.argv[1:] = json.loads(line)
    output, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(output):
            exec(code, {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    keras.utils.clear_session()
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.config.set_epsilon(1e-7)
    tf.config.optimizer.set_experimental_options({"remapping": True})
    print(json.dumps([output.getvalue(), error]), file=answers, flush=True)
"""


@contextmanager
def start_keras(directory: Path) -> Iterator[Callable[..., str]]:
    """Yield a function that runs code with arguments in one TensorFlow process, and returns what the code prints.

    Between two scripts, Keras forgets its names, its precision and its epsilon, and TensorFlow fuses operations again,
    which models in float64 turn off. Scripts can use three logical CPU devices. Code that changes anything else of the
    process, such as a function of TensorFlow, needs a process of its own.
    """
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        questions, answers = process.stdin, process.stdout
        assert questions is not None and answers is not None

        def run(code: str, *arguments: Any) -> str:
            print(json.dumps([code, *map(str, arguments)]), file=questions, flush=True)
            answer = answers.readline()
            assert answer, "the TensorFlow process of the tests has ended"
            output, error = json.loads(answer)
            assert error is None, error
            return str(output)

        yield run
