"""Tensors of a user's checkpoint that the model does not have, or cannot be trained from."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.errors import UserError
from common.map.description import ModelDescription, VariableDescription
from common.models.user_weights import read_weights

DRAWN = {"table": np.arange(6, dtype=np.float32).reshape(3, 2), "bias": np.zeros(2, np.float32)}
VARIABLES = {name: VariableDescription(name, array.shape, True) for name, array in DRAWN.items()}


def read(path: Path, more: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Read a checkpoint of a model of PyTorch that has more tensors than the model."""
    save_file({**DRAWN, **more}, path)
    side = Mock(call=Mock(return_value=dict(DRAWN)))
    descriptions = {"torch": ModelDescription([], VARIABLES, [], False, aliases={"decoder.bias": "bias"})}
    return read_weights(Mock(checkpoint=str(path)), {"torch": side}, descriptions, None)


def test_a_tied_tensor_may_have_a_second_name(tmp_path: Path) -> None:
    weights = read(tmp_path / "tied.safetensors", {"decoder.weight": DRAWN["table"]})
    assert weights.keys() == DRAWN.keys()


def test_the_second_name_of_a_tied_zero_bias_is_known_from_the_model(tmp_path: Path) -> None:
    weights = read(tmp_path / "untrained.safetensors", {"decoder.bias": np.zeros(2, np.float32)})
    assert weights.keys() == DRAWN.keys()


def test_different_values_for_a_tied_tensor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bias and decoder\.bias differ, and the model has one tensor for both"):
        read(tmp_path / "untied.safetensors", {"decoder.bias": np.ones(2, np.float32)})


@pytest.mark.parametrize("array", [np.zeros(2, np.float32), np.ones((3, 2), np.float32)])
def test_a_tensor_of_one_value_is_not_tied_by_chance(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(UserError, match="has more.bias, which the model does not have"):
        read(tmp_path / "more.safetensors", {"more.bias": array})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    bias = np.array([0, value], np.float32)
    with pytest.raises(UserError, match="bias has values that are infinite or not a number"):
        read(tmp_path / "diverged.safetensors", {"bias": bias})


@pytest.mark.parametrize("name", ["own.weights.h5", "own.keras", "of_keras_two.hdf5"])
def test_keras_weights_that_are_not_finite_are_refused(tmp_path: Path, name: str) -> None:
    stored = DRAWN | {"bias": np.array([0, np.nan], np.float32)}
    side = Mock(call=lambda name, **_: dict(stored if name == "read_checkpoint" else DRAWN))
    descriptions = {"tf": ModelDescription([], VARIABLES, [], False)}
    with pytest.raises(UserError, match="bias has values that are infinite or not a number"):
        read_weights(Mock(checkpoint=str(tmp_path / name)), {"tf": side}, descriptions, None)


def test_a_buffer_may_have_infinite_values_if_the_model_builds_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = np.array([0, -np.inf], np.float32)
    monkeypatch.setitem(DRAWN, "bias", mask)
    np.testing.assert_array_equal(read(tmp_path / "mask.safetensors", {})["bias"], mask)
