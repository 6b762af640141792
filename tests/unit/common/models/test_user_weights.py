"""Tensors of a user's checkpoint that the model does not have."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.errors import UserError
from common.map.description import ModelDescription, VariableDescription
from common.models.user_weights import read_weights

DRAWN = {"table": np.arange(6, dtype=np.float32).reshape(3, 2), "bias": np.zeros(2, np.float32)}


def read(path: Path, more: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Read a checkpoint of a model of PyTorch that has more tensors than the model."""
    save_file({**DRAWN, **more}, path)
    variables = {name: VariableDescription(name, array.shape, True) for name, array in DRAWN.items()}
    side = Mock(call=Mock(return_value=dict(DRAWN)))
    descriptions = {"torch": ModelDescription([], variables, [], False)}
    return read_weights(Mock(checkpoint=str(path)), {"torch": side}, descriptions, None)


def test_a_tied_tensor_may_have_a_second_name(tmp_path: Path) -> None:
    weights = read(tmp_path / "tied.safetensors", {"decoder.weight": DRAWN["table"]})
    assert weights.keys() == DRAWN.keys()


@pytest.mark.parametrize("array", [np.zeros(2, np.float32), np.ones((3, 2), np.float32)])
def test_a_tensor_of_one_value_is_not_tied_by_chance(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(UserError, match="has more.bias, which the model does not have"):
        read(tmp_path / "more.safetensors", {"more.bias": array})
