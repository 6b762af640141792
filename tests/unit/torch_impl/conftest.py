"""Fixtures of the tests that import PyTorch."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    """Undo what a float64 model changes for the rest of its process."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float32)
