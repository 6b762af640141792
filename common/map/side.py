"""A side: a process of one framework that holds a model and computes for the calling process.

No process imports both frameworks, so that a comparison of PyTorch with Keras needs two sides.
"""

import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from threading import Thread
from types import TracebackType
from typing import Any

from common.config.strategies import TITLES
from common.errors import UserError, describe_error
from common.run_module import ROOT, import_own_packages, own_packages_first

CLASSES = {"described_model": "DescribedModel", "observed_model": "ObservedModel"}  # by module, in either package
POLL_SECONDS = 1.0  # interval between checks whether a process that does not answer is still alive


class Side:
    """A process of one framework that holds an object of one class. The object's methods are called by name.

    A pipe carries the pickled arguments and results.
    """

    def __init__(self, package: str, module: str = "described_model") -> None:
        """Start the process.

        Args:
            package: torch_impl or tf_impl.
            module: The module of the package whose class is called: a key of CLASSES.
        """
        self.package = package
        context = multiprocessing.get_context("spawn")
        self.connection, child_connection = context.Pipe()
        self.process = context.Process(target=answer_calls, args=(package, module, child_connection), daemon=True)
        with own_packages_first():
            self.process.start()
        child_connection.close()

    def send(self, function: str, **arguments: object) -> None:
        """Begin a call; `receive` waits for its result. Raise UserError if the process has ended.

        Args:
            function: "build", which creates the model, or a method of the model that was built last.
            arguments: The keyword arguments.
        """
        try:
            self.connection.send((function, arguments))
        except ConnectionError:
            raise self._build_end_error() from None

    def receive(self) -> Any:  # noqa: ANN401  the result of any method
        """Return the result of the call. Raise UserError, in one line, if the call raised an error."""
        try:
            while not self.connection.poll(POLL_SECONDS):  # a process that the model forked keeps the connection open
                if not self.process.is_alive() and not self.connection.poll():
                    raise EOFError
            result, error = self.connection.recv()
        except (EOFError, ConnectionError):
            raise self._build_end_error() from None
        if error is not None:
            raise UserError(error)
        return result

    def call(self, function: str, **arguments: object) -> Any:  # noqa: ANN401  the result of any method
        """Call a method, and return its result. Raise UserError, in one line, if the call raised an error."""
        self.send(function, **arguments)
        return self.receive()

    def _build_end_error(self) -> UserError:
        self.process.join()
        code = self.process.exitcode
        cause = "it was killed, possibly out of memory" if code == -signal.SIGKILL else "its output says why"
        return UserError(f"the process of {_find_title(self.package)} ended with exit code {code}; {cause}")

    def __enter__(self) -> "Side":
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process. After an error, do not wait for it."""
        self.connection.close()
        self.process.join(5 if kind is None else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _find_title(package: str) -> str:
    return TITLES[package.removesuffix("_impl")]


def receive_all(*sides: Side) -> tuple[Any, ...]:
    """Return the results of the calls to some sides. Wait for all of them, even if one raises UserError."""
    if not sides:
        return ()
    try:
        first = sides[0].receive()
    except UserError:
        with suppress(UserError):
            receive_all(*sides[1:])
        raise
    return first, *receive_all(*sides[1:])


def answer_calls(package: str, module_name: str, connection: Connection) -> None:
    """Answer calls in the process of a side until the connection is closed."""
    import_own_packages()
    sys.path.remove(ROOT)  # `own_packages_first` put it first; the user's modules come first from now on
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends this process
    Thread(target=_exit_with_parent, daemon=True).start()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # otherwise PyTorch's threads wait in loops, on all cores
    with _discard_stderr():
        module = importlib.import_module(f"{package}.{module_name}")
    model = None
    with suppress(EOFError, ConnectionError):  # the other end is closed, or its process has ended
        while True:
            function, arguments = connection.recv()
            try:
                result = None
                if function == "build":
                    model = None  # memory may not suffice for two models
                    model = getattr(module, CLASSES[module_name])(**arguments)
                else:
                    result = getattr(model, function)(**arguments)
                answer = pickle.dumps((result, None))
            except UserError as error:
                answer = pickle.dumps((None, str(error)))
            except Exception as error:
                traceback.print_exc()
                answer = pickle.dumps((None, f"{_find_title(package)}: {describe_error(error)}"))
            connection.send_bytes(answer)


def _exit_with_parent() -> None:
    """Exit when the calling process ends, even if it is killed while a model computes or hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _discard_stderr() -> Iterator[None]:
    """Discard standard error, on which TensorFlow reports a missing GPU during its import."""
    sys.stderr.flush()
    saved_stderr, null_device = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 2)
    try:
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(null_device)
