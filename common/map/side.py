"""A process of one framework that holds a user's model: one framework per process."""

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

from common.errors import UserError, describe_error
from common.run_module import ROOT, import_own_packages, own_packages_first

TITLES = {"torch_impl": "PyTorch", "tf_impl": "TensorFlow"}
CLASSES = {"described_model": "DescribedModel", "observed_model": "ObservedModel"}  # by module, of either side
POLL_SECONDS = 1.0  # how often a process that says nothing is looked at


class Side:
    """A process of `torch_impl` or `tf_impl`. Calls go to the object of `module` that was built last."""

    def __init__(self, package: str, module: str = "described_model") -> None:
        self.package = package
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=answer_calls, args=(package, module, theirs), daemon=True)
        with own_packages_first():
            self.process.start()
        theirs.close()

    def send(self, function: str, **arguments: Any) -> None:
        """Begin a call; `receive` waits for it. "build" makes an object.

        Raises UserError where the process ended.
        """
        try:
            self.connection.send((function, arguments))
        except ConnectionError:
            raise self._ended() from None

    def receive(self) -> Any:
        """What the call returned. Raises UserError for what it raised, in one line."""
        try:
            while not self.connection.poll(POLL_SECONDS):  # a process that the model forked keeps the connection open
                if not self.process.is_alive() and not self.connection.poll():
                    raise EOFError
            returned, error = self.connection.recv()
        except (EOFError, ConnectionError):
            raise self._ended() from None
        if error is not None:
            raise UserError(error)
        return returned

    def call(self, function: str, **arguments: Any) -> Any:
        """`send` and `receive`."""
        self.send(function, **arguments)
        return self.receive()

    def _ended(self) -> UserError:
        self.process.join()
        code = self.process.exitcode
        why = "it was killed, perhaps for want of memory" if code == -signal.SIGKILL else "its output says why"
        return UserError(f"the process of {TITLES[self.package]} ended with exit code {code}; {why}")

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
        self.process.join(5 if kind is None else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def answer_calls(package: str, name: str, connection: Connection) -> None:
    """Answer calls until the connection is closed."""
    import_own_packages()
    sys.path.remove(ROOT)  # first there because of `own_packages_first`; modules of the user come first from now on
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends this process
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _quiet():
        module = importlib.import_module(f"{package}.{name}")
    subject = None
    with suppress(EOFError, ConnectionError):  # the other end is closed, or its process is gone
        while True:
            function, arguments = connection.recv()
            try:
                returned = None
                if function == "build":
                    subject = None  # two models need not fit into memory
                    subject = getattr(module, CLASSES[name])(**arguments)
                else:
                    returned = getattr(subject, function)(**arguments)
                answer = pickle.dumps((returned, None))
            except UserError as error:
                answer = pickle.dumps((None, str(error)))
            except Exception as error:
                traceback.print_exc()
                answer = pickle.dumps((None, f"{TITLES[package]}: {describe_error(error)}"))
            connection.send_bytes(answer)


def _end_with_parent() -> None:
    """The parent may be killed while a model computes, or hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without standard error, on which TensorFlow reports that there is no GPU while it is imported."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
