"""The PyTorch counterpart of compiled_keras.py."""

from tests.parity.keras_two_torch import build

__all__ = ["build"]
