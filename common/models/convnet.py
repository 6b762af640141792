"""The spec of the convolutional network: its config.json, the shapes of its parameters, and their initial values."""

import math

import numpy as np

from common.config.models import ConvNetSettings
from common.config.schema import Config
from common.data.cache import Cache
from common.data.images.image_cache import ImageCache
from common.errors import UserError
from common.models.hf_config import HfConfig
from common.models.pretrained import SourceCheckpoint


def build_hf_config(config: Config, cache: Cache, source: SourceCheckpoint | None) -> HfConfig:
    """Return the config.json. Its image_shape is (height, width, channels). Raise UserError if the images are small."""
    assert isinstance(config.model, ConvNetSettings) and isinstance(cache, ImageCache)
    height, width, _ = cache.image_shape
    if min(height, width) < 4:
        raise UserError(
            f"data={config.data.kind}: its images are {height} x {width}; model=convnet halves them twice and needs "
            "4 x 4 or more"
        )
    return {
        "model_type": "convnet",
        "image_shape": cache.image_shape,
        "channels": config.model.channels,
        "kernel_size": config.model.kernel_size,
        "hidden_size": config.model.hidden_size,
        "dropout": config.model.dropout,
        "id2label": dict(enumerate(cache.classes)),
        "label2id": {name: index for index, name in enumerate(cache.classes)},
    }


def get_pooled_shape(hf_config: HfConfig) -> tuple[int, int, int]:
    """Return (channels, height, width) of an example after both convolutions. A pooling after each halves the image."""
    height, width, _ = hf_config["image_shape"]
    return hf_config["channels"][1], height // 4, width // 4


def get_parameter_shapes(hf_config: HfConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters by name, in PyTorch's layout: (outputs, inputs), then height and width.

    fc1 takes the channels, height and width of `get_pooled_shape`, flattened.
    """
    inputs = hf_config["image_shape"][2]
    first_channels, second_channels = hf_config["channels"]  # outputs of the two convolutions
    size, hidden = hf_config["kernel_size"], hf_config["hidden_size"]
    weights = {
        "conv1": (first_channels, inputs, size, size),
        "conv2": (second_channels, first_channels, size, size),
        "fc1": (hidden, math.prod(get_pooled_shape(hf_config))),
        "fc2": (len(hf_config["id2label"]), hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in weights.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]
    return shapes


def list_transformations(hf_config: HfConfig) -> list[str]:
    """Return the transformation of each Keras variable from PyTorch's parameters, as a map file has it.

    Keras flattens (height, width, channels).
    """
    channels, height, width = get_pooled_shape(hf_config)
    shapes = get_parameter_shapes(hf_config)
    hidden, inputs = shapes["fc1.weight"]
    fc1 = f"reshape {hidden} {channels} {height} {width} | transpose 2 3 1 0"
    steps = {
        **dict.fromkeys(("conv1.weight", "conv2.weight"), " | transpose 2 3 1 0"),
        "fc1.weight": f" | {fc1} | reshape {inputs} {hidden}",
        "fc2.weight": " | transpose 1 0",
    }
    return [name + steps.get(name, "") for name in shapes]


def draw_parameter(hf_config: HfConfig, name: str, shape: tuple[int, ...], stream: np.random.Generator) -> np.ndarray:
    """Return a random initial value as torch's Conv2d and Linear draw it.

    Weights and biases are uniform within 1 / sqrt(number of inputs of one output). A bias has the bound of the weight
    of the same layer.
    """
    _, *inputs = get_parameter_shapes(hf_config)[name.replace(".bias", ".weight")]
    bound = 1 / math.sqrt(math.prod(inputs))
    return stream.uniform(-bound, bound, shape).astype(np.float32)
