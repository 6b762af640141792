"""A side: a process of one framework that holds a model and computes for the calling process.

No process imports both frameworks, so a comparison of PyTorch with Keras needs two sides.
"""

import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from multiprocessing import Pipe
from types import TracebackType
from typing import Any

from common.config.strategies import TITLES
from common.errors import UserError
from common.interpreter import MAX_SECONDS, check_import
from common.map.side_messages import encode_message, receive_message, send_parts
from common.run_module import module_command

POLL_SECONDS = 1.0  # interval between checks whether a process that does not answer is still alive
END_SECONDS = 5.0  # how long a process may take to end


class Side:
    """A process of one framework that holds a model. `call` calls the model's methods by name."""

    def __init__(
        self, package: str, module: str = "described_model", python: str | None = None, device: str = "auto"
    ) -> None:
        """Start the process.

        Args:
            package: torch_impl or tf_impl.
            module: The module whose class makes the model: a key of CLASSES in common.map.side_process.
            python: The interpreter of another environment, checked by `common.interpreter`; None for this environment.
            device: The value of `train.device` of the run: with "cpu", the process sees no GPU.
        """
        self.framework, self.python, self.has_imported = package.removesuffix("_impl"), python, False
        self.title = TITLES[self.framework] + (f" ({python})" if python else "")
        self.connection, child_connection = Pipe()
        descriptor = child_connection.fileno()
        command = module_command("common.map.side_process", package, module, str(descriptor), python=python)
        gpu_variables = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        # After Ctrl-C `__exit__` kills the process, which then cannot remove its temporary files. So they lie in a
        # directory of this object, which removes it.
        self.temporary_directory = tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True)
        environment = {**os.environ, **gpu_variables, "TMPDIR": self.temporary_directory.name}
        # The process ends when its standard input is closed.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor], env=environment)
        child_connection.close()

    def send(self, function: str, **arguments: object) -> None:
        """Begin a call; `receive` waits for its result. Raise UserError if the process has ended.

        Args:
            function: "build", which creates the model, or a method of the model that was built last.
            arguments: The keyword arguments.
        """
        try:
            send_parts(self.connection, encode_message((function, arguments)))
        except OSError:
            raise self._build_end_error() from None

    def receive(self) -> Any:  # noqa: ANN401  the result of any method
        """Return the result of the call. Raise a UserError of one line if the call failed or the process ended."""
        if not self.has_imported:
            self._receive_message(None if self.python is None else MAX_SECONDS)
            self.has_imported = True
        result, error = self._receive_message()
        if error is not None:
            raise UserError(error)
        return result

    def call(self, function: str, **arguments: object) -> Any:  # noqa: ANN401  the result of any method
        """Call a method, and return its result as `receive` does."""
        self.send(function, **arguments)
        return self.receive()

    def _receive_message(self, max_seconds: float | None = None) -> tuple[Any, str | None]:
        """Return a message of the process. Raise UserError if it ends, or sends nothing for `max_seconds`."""
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        try:
            while not self.connection.poll(POLL_SECONDS):  # a process that the model forked keeps the connection open
                if self.process.poll() is not None and not self.connection.poll():
                    raise EOFError
                if deadline is not None and time.monotonic() > deadline:
                    raise UserError(
                        f"the process of {self.title} has not imported its framework within {max_seconds} s; "
                        "repair that environment"
                    )
            message: tuple[Any, str | None] = receive_message(self.connection)
        except (EOFError, OSError):  # the process may end while it sends an array
            raise self._build_end_error() from None
        return message

    def _build_end_error(self) -> UserError:
        code = self.process.wait()
        if self.python is not None and not self.has_imported:  # its output during the import is discarded
            check_import(f"the process of {self.title} ended; python", self.python, self.framework)
        cause = "it was killed, possibly out of memory" if code == -signal.SIGKILL else "its output says why"
        return UserError(f"the process of {self.title} ended with exit code {code}; {cause}")

    def __enter__(self) -> "Side":
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process: wait up to END_SECONDS, or kill it at once after an error."""
        self.connection.close()  # ends the loop of the process
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS if kind is None else 0)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.temporary_directory.cleanup()


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
