"""Operations of small computations, as a recorder describes them."""

from collections.abc import Callable

import numpy as np

from common.recording.operation_format import OperationTrace, TensorStatistics
from common.recording.operation_observer import OperationObserver


class Tensor(np.ndarray):
    """An array to which a weak reference is possible."""


def to_tensor(values: object) -> Tensor:
    return np.array(values, np.float64).view(Tensor)


def measure(tensor: Tensor) -> TensorStatistics:
    array = np.asarray(tensor, np.float64)
    return {
        "shape": list(array.shape),
        "dtype": str(tensor.dtype),
        "sum": float(array.sum()),
        "norm": float(np.linalg.norm(array)),
        "minimum": float(array.min()),
        "maximum": float(array.max()),
    }


class Script:
    """A script whose operations are observed."""

    def __init__(self, **inputs: object) -> None:
        self.observer = OperationObserver(measure, [__name__])
        self.tensors: list[Tensor] = []  # keeps them alive
        self.inputs = {name: self.name(f"batch/0/input/{name}", to_tensor(x)) for name, x in inputs.items()}

    def name(self, name: str, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        self.observer.name_tensor(name, tensor)
        return tensor

    def call(self, name: str, function: Callable[..., object], *tensors: Tensor, **arguments: object) -> Tensor:
        result = to_tensor(function(*tensors, **arguments))
        self.tensors += [*tensors, result]
        self.observer.add(name, arguments, tensors, [result], "")
        return result

    def finish(self, loss: Tensor) -> OperationTrace:
        return self.observer.finish(loss)
