"""Initial weights of the convnet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.schema import Config
from common.errors import UserError
from common.models.convnet import get_parameter_shapes
from common.models.initial_weights import InitialCheckpoint
from common.run.prepare import prepare_inputs
from tests.conftest import MakeConfig
from tests.unit.common.data.images.idx_samples import write_idx

SHAPES = {
    "conv1.weight": (10, 1, 5, 5),
    "conv1.bias": (10,),
    "conv2.weight": (20, 10, 5, 5),
    "conv2.bias": (20,),
    "fc1.weight": (50, 80),
    "fc1.bias": (50,),
    "fc2.weight": (10, 50),
    "fc2.bias": (10,),
}
INPUTS = {"conv1": 25, "conv2": 250, "fc1": 80, "fc2": 50}


def open_initial(config: Config) -> InitialCheckpoint:
    return prepare_inputs(config, None)[1].initial


def test_random_weights_have_the_distribution_of_pytorch(make_config: MakeConfig) -> None:
    weights = open_initial(make_config("model=convnet")).weights()
    assert {name: weight.shape for name, weight in weights.items()} == SHAPES
    for name, weight in weights.items():
        bound = INPUTS[name.partition(".")[0]] ** -0.5
        assert weight.dtype == np.float32
        assert np.abs(weight).max() <= np.float32(bound)
        if weight.size >= 200:
            assert weight.std() == pytest.approx(bound / 3**0.5, rel=4 / (2 * weight.size) ** 0.5)


@pytest.mark.slow
def test_names_and_shapes_are_those_of_the_module() -> None:
    """The image has odd sizes and three channels, and there are two classes."""
    from torch_impl.models.convnet import ConvNet

    hf_config: dict[str, Any] = {
        "image_shape": [11, 6, 3],
        "channels": [4, 7],
        "kernel_size": 3,
        "hidden_size": 5,
        "dropout": 0.0,
    }
    hf_config["id2label"] = {"0": "a", "1": "b"}
    hf_config["model_type"] = "convnet"
    shapes = {name: tuple(parameter.shape) for name, parameter in ConvNet(hf_config).named_parameters()}
    assert shapes == get_parameter_shapes(hf_config)
    assert shapes["fc1.weight"] == (5, 7 * 2 * 1)


def test_the_config_of_the_model(make_config: MakeConfig) -> None:
    initial = open_initial(make_config("model=convnet", "model.dropout=0.5"))
    assert {path.name for path in initial.directory.iterdir()} == {"config.json", "model.safetensors", "manifest.json"}
    assert initial.hf_config == {
        "model_type": "convnet",
        "image_shape": [8, 8, 1],
        "channels": [10, 20],
        "kernel_size": 5,
        "hidden_size": 50,
        "dropout": 0.5,
        "id2label": {str(digit): str(digit) for digit in range(10)},
        "label2id": {str(digit): digit for digit in range(10)},
    }
    assert open_initial(make_config("model=convnet", "train.seed=1")).fingerprint != initial.fingerprint


def test_images_that_are_too_small_are_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    images = np.arange(2 * 9 * 3, dtype=np.uint8).reshape(2, 9, 3)
    for prefix in ("train", "t10k"):
        write_idx(tmp_path, prefix, images, np.array([0, 1], np.uint8), zipped=False)
    with pytest.raises(UserError) as raised:
        open_initial(make_config("model=convnet", "data=idx", f"data.directory={tmp_path}"))
    assert str(raised.value) == (
        "data=idx: its images are 9 x 3; model=convnet halves them twice and needs 4 x 4 or more"
    )
