"""A user's module, as training builds it."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from tests.conftest import MakeConfig
from torch_impl.models import build_model


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_complex_buffers_keep_their_imaginary_part(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("rotation", torch.tensor([1j, 2 - 1j]))
    monkeypatch.setattr("torch_impl.models.import_module", lambda name: SimpleNamespace(build=lambda initial: model))
    built = build_model(small_config(f"train.precision={precision}"), Mock())
    assert built.get_buffer("rotation").imag.tolist() == [1.0, -1.0]
    assert built.weight.dtype == getattr(torch, precision)
