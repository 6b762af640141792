"""Format of operations.json, a file of a record: the operations of the first micro-batch, up to its loss.

The file shows which line of a script computed what. The file is missing if the recorder cannot see operations, and in
records of older versions. A tensor is known by a number, and described by statistics that do not depend on the order of
its axes: two scripts that compute the same tensor in another layout have the same statistics, up to rounding.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

from typing import TypedDict

OPERATIONS = "operations.json"
MOST_OPERATIONS = 20_000  # number of operations after which the list ends
MOST_PARTS = 20_000  # number of operations within layers after which no more are listed
MOST_ORDERED = 1 << 18  # number of elements of a tensor whose centers are computed


class TensorSums(TypedDict):
    """The numbers of a tensor, whatever their order."""

    shape: list[int]
    dtype: str  # such as "float32"
    sum: float | None  # in float64; None if the tensor holds no finite numbers
    norm: float | None  # square root of the sum of the squares
    minimum: float | None
    maximum: float | None


class TensorStatistics(TensorSums, total=False):
    """A tensor that an operation received or returned."""

    # For each axis, the sum of the elements times their position in it: 0 at the begin, 1 at the end. The same numbers
    # in another order have other centers. Missing for a large tensor, and in records of older versions
    centers: list[float]


class Part(TypedDict):
    """An operation: a function of the framework, a layer that contains no others, or the reduction of losses."""

    # Of the function in the framework, such as "log_softmax", of the kind of the layer, such as "Linear", or of the
    # reduction: "mean", which has the argument "divisor" if that is not the number of losses, "sum" or "batchmean"
    name: str
    # Plain arguments by name, or by position if the name is not known. The index of a subscript, and of a function that
    # does the same, is the argument "index": text such as "[:, -1]", as index_notation.py writes it
    arguments: dict[str, object]
    inputs: list[int]  # numbers of the tensors that it received
    outputs: list[int]  # numbers of the tensors that it returned
    layer: str  # path of the layer whose code called it, or of the layer that it is; empty outside of the model
    file: str  # name of the file of the line that called it, without directories; empty if only the framework did
    line: int  # number of the line, from 1; 0 if the file is empty
    code: str  # the line


class Operation(Part, total=False):
    """An operation, and what it consists of: another script may compute a recurrent layer or an attention in steps."""

    parts: list[Part]  # the operations from its inputs to its outputs; missing if they are not known


class OperationTrace(TypedDict):
    """The content of operations.json."""

    tensors: list[TensorStatistics]  # by number
    operations: list[Operation]  # in the order in which they ended
    names: dict[
        str, int
    ]  # numbers of tensors by their names in the record, such as "layer/fc1/output" or "weight/bias"
    loss: int | None  # number of the loss; None: not seen
    complete: bool  # whether all operations up to the loss are listed
