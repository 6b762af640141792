"""Observer of the operations of a forward pass, which a recorder uses within the process of a training script.

operation_format.py describes the result.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from common.recording.operation_format import (
    MOST_OPERATIONS,
    MOST_PARTS,
    Operation,
    OperationTrace,
    Part,
    TensorStatistics,
)
from common.recording.record_writer import list_plain_values

# Names of what the model returned: in a record, and while TensorFlow's recorder does not know the calls that are used
OUTPUT = re.compile(r"(batch/0(/call/\d+)?|\d+)/output/")
MOST_CHARACTERS = 160  # of a line of code
MOST_CHARACTERS_OF_ARGUMENT = 1000
# Packages that are not part of a script, for Python 3.9, which does not list its standard library
STANDARD_LIBRARY = getattr(sys, "stdlib_module_names", {"contextlib", "functools"}) - {"__main__"}

AnyOperation = TypeVar("AnyOperation", Operation, Part)


class OperationObserver:
    """Collects operations. It keeps no tensor alive."""

    def __init__(self, measure: Callable[[Any], TensorStatistics], packages: Iterable[str]) -> None:
        """Prepare to observe.

        Args:
            measure: Returns the statistics of a tensor.
            packages: Names of modules and packages that are not part of the script, such as the framework.
        """
        self._measure = measure
        self._packages = tuple(f"{package}." for package in ("common.recording", *packages))
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}  # by the id of a tensor: it, and its number
        self._trace: OperationTrace = {"tensors": [], "operations": [], "names": {}, "loss": None, "complete": True}
        self._parts: list[Part] | None = None  # of the operation that computes now
        self._part_count = 0  # number of parts of all operations

    def see(self, tensor: object, is_changed: bool = False, is_result: bool = False) -> None:
        """Number a tensor before an operation that may change it.

        Args:
            tensor: The tensor.
            is_changed: Whether the tensor has changed since it was seen.
            is_result: Whether the tensor depends on weights. A new tensor that does comes from an unseen operation.
        """
        if len(self._trace["operations"]) >= MOST_OPERATIONS:
            return
        if is_changed:
            self._numbers.pop(id(tensor), None)
        count = len(self._trace["tensors"])
        if self.find_number(tensor) == count and is_result:
            self._trace["complete"] = False

    def add(
        self,
        name: str,
        arguments: Mapping[str, object],
        inputs: Sequence[object],
        outputs: Sequence[object],
        layer: str,
        parts: Sequence[Part] = (),
    ) -> None:
        """Add an operation that has ended.

        An output that is one of the inputs was changed in place, and gets a new number.

        Args:
            name: The name of the function or the kind of the layer.
            arguments: The arguments; those that are not plain, and long ones, are left out.
            inputs: The tensors that it received.
            outputs: The tensors that it returned.
            layer: The path of the layer whose code called it; empty outside of the model.
            parts: The operations that it consists of, as `collect_parts` yields them.
        """
        if self._parts is not None and self._part_count >= MOST_PARTS:
            return
        if len(self._trace["operations"]) >= MOST_OPERATIONS:
            self._trace["complete"] = False
            return
        input_numbers = [self.find_number(tensor) for tensor in inputs]
        received = {id(tensor) for tensor in inputs}
        for output in outputs:
            if id(output) in received:
                del self._numbers[id(output)]
        file, line, code = self._find_line()
        operation: Operation = {
            "name": name,
            "arguments": {
                name: value
                for name, value in list_plain_values(arguments).items()
                if len(str(value)) <= MOST_CHARACTERS_OF_ARGUMENT
            },
            "inputs": input_numbers,
            "outputs": [self.find_number(tensor) for tensor in outputs],
            "layer": layer,
            "file": file,
            "line": line,
            "code": code,
        }
        if self._parts is not None:
            self._parts += parts or [operation]
            self._part_count += not parts
            return
        needed = _select_operations(parts, operation["outputs"])
        if needed:  # else the last ones are not listed
            operation["parts"] = needed
        self._trace["operations"].append(operation)

    @contextmanager
    def collect_parts(self) -> Iterator[list[Part]]:
        """Collect the operations that are added, as parts of the operation that computes. Those of parts are parts."""
        outer, self._parts = self._parts, []
        try:
            yield self._parts
        finally:
            self._parts = outer

    def find_number(self, tensor: Any) -> int:  # noqa: ANN401  a tensor of any framework
        """Return the number of a tensor, which it has from now on."""
        reference, number = self._numbers.get(id(tensor), (None, 0))
        if reference is not None and reference() is tensor:
            return number
        number = len(self._trace["tensors"])
        self._trace["tensors"].append(self._measure(tensor))
        self._numbers[id(tensor)] = weakref.ref(tensor), number
        return number

    def name_tensor(self, name: str, tensor: object) -> None:
        """Give a tensor its name in the record. The first tensor of a name keeps it."""
        if name not in self._trace["names"]:
            self._trace["names"][name] = self.find_number(tensor)

    def share_number(self, tensor: object, other: object) -> None:
        """Give a tensor the number of another tensor with the same values."""
        self._numbers[id(tensor)] = weakref.ref(tensor), self.find_number(other)

    def finish(self, loss: object) -> OperationTrace:
        """Return the operations that lead to a loss or to an output, or all operations if the loss is None."""
        if loss is not None:
            number = self._trace["loss"] = self.find_number(loss)
            # Keras computes the loss of probabilities from what their sigmoid received, and not from the model's output
            outputs = [tensor for name, tensor in self._trace["names"].items() if OUTPUT.match(name)]
            self._trace["operations"] = _select_operations(self._trace["operations"], [number, *outputs])
        return self._trace

    def _find_line(self) -> tuple[str, int, str]:
        """Return file, number and text of the innermost line of code that is not part of the framework."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__") or "__main__"
            if not (f"{module}.".startswith(self._packages) or module.partition(".")[0] in STANDARD_LIBRARY):
                file, line = frame.f_code.co_filename, frame.f_lineno
                return os.path.basename(file), line, linecache.getline(file, line).strip()[:MOST_CHARACTERS]  # noqa: PTH119
            frame = frame.f_back
        return "", 0, ""


def _select_operations(operations: Sequence[AnyOperation], tensors: Iterable[int]) -> list[AnyOperation]:
    """Return the operations that lead to tensors."""
    needed, selected = {*tensors}, []
    for operation in reversed(operations):
        if not needed.isdisjoint(operation["outputs"]):
            needed.update(operation["inputs"])
            selected.append(operation)
    return selected[::-1]
