"""Float64 computation throughout: Keras rounds some values to float32 even in float64 models on the PyTorch backend."""

from keras.src.backend.common import dtypes


def compute_in_float64() -> None:
    """Make Keras's operations keep float64 for the rest of this process, as they do on TensorFlow.

    On every other backend, the result of two float64 arrays has the type float32 in Keras, and keras.ops.matmul and
    einsum compute in this type.
    """
    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
