"""Arrays that the observer of operations can observe."""

import numpy as np

from common.recording.operation_format import TensorStatistics


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
