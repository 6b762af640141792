"""Program of the process of a side: python -m common.map.side_process PACKAGE MODULE DESCRIPTOR.

It answers the calls of `common.map.side`, in the environment of its interpreter.
"""

import gc
import importlib
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Thread

from common.config.strategies import TITLES
from common.errors import USER_ERROR, UserError, describe_error

try:
    importlib.import_module("numpy")  # if it is broken, ml_dtypes prints a stack trace
    from common.map.side_messages import encode_message, receive_message, send_parts
except ImportError:  # another environment's NumPy or ml_dtypes: `Side` finds out which, and says so
    sys.exit(USER_ERROR)

CLASSES = {  # the class that a module makes available, by the name of the module in torch_impl and tf_impl
    "described_model": "DescribedModel",
    "observed_model": "ObservedModel",
    "stored_model": "StoredModel",
}


def answer_calls(package: str, module_name: str, connection: Connection) -> None:
    """Answer calls until the connection is closed.

    Args:
        package: torch_impl or tf_impl.
        module_name: The module of the package whose class is called: a key of CLASSES.
        connection: The connection to the command.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # otherwise PyTorch's threads wait in loops, on all cores
    os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the user has set for other programs
    os.environ["KERAS_TORCH_DEVICE"] = "cpu"  # a Keras model of PyTorch's side, like all models here
    # Keras warns of models with layers that they never call; the proof lists the variables without a counterpart.
    warnings.filterwarnings("ignore", message=r"`build\(\)` was called on layer", category=UserWarning)
    title, failure = TITLES[package.removesuffix("_impl")], ""
    try:
        with _discard_stderr():
            module = importlib.import_module(f"{package}.{module_name}")
        gc.freeze()  # Keras collects garbage before each model, which takes 0.4 s with all objects of the imports
    except Exception as error:  # the first call is answered with it
        failure = f"{title}: cannot be imported with {sys.executable}: {describe_error(error)}"
    model = None
    with suppress(EOFError, OSError):  # the other end is closed, or its process has ended
        send_parts(connection, encode_message((None, None)))  # the import has ended
        while True:
            function, arguments = receive_message(connection)
            try:
                result = None
                if failure:
                    raise UserError(failure)
                if function == "build":
                    model = None  # memory may not suffice for two models
                    model = getattr(module, CLASSES[module_name])(**arguments)
                else:
                    result = getattr(model, function)(**arguments)
                answer = encode_message((result, None))
            except UserError as error:
                answer = encode_message((None, str(error)))
            except Exception as error:
                traceback.print_exc()
                answer = encode_message((None, f"{title}: {describe_error(error)}"))
            send_parts(connection, answer)


def _exit_with_parent(descriptor: int) -> None:
    """Exit when the command ends, even if it is killed while a model computes or hangs."""
    while os.read(descriptor, 1):
        pass
    _remove_temporary_files()
    os._exit(1)


def _remove_temporary_files() -> None:
    """Remove the directory that `Side` made for this process, because a command that was killed cannot."""
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def _take_standard_input() -> int:
    """Return a descriptor of standard input, a pipe that closes when the command ends. User code reads an empty one."""
    descriptor, null_device = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, 0)
    os.close(null_device)
    return descriptor


@contextmanager
def _discard_stderr() -> Iterator[None]:
    """Discard standard error, because TensorFlow reports a missing GPU there during its import."""
    sys.stderr.flush()
    saved_stderr, null_device = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 2)
    try:
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(null_device)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends this process
    Thread(target=_exit_with_parent, args=(_take_standard_input(),), daemon=True).start()
    answer_calls(sys.argv[1], sys.argv[2], Connection(int(sys.argv[3])))
    _remove_temporary_files()
