"""Settings and spec of a model: a perceptron with one hidden layer.

The spec is what both frameworks share: config.json, and the names, shapes and initial values of the parameters. The
fields of the settings are config keys, such as model.hidden_size=16. CURVE says that the key decides the loss curve.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.config.keys import CURVE, key
from common.config.models import MODELS, DropoutModelSettings
from common.config.schema import Config
from common.data.cache import Cache
from common.data.images.image_cache import ImageCache


@dataclass(frozen=True)
class MlpSettings(DropoutModelSettings):
    """Settings of the perceptron."""

    reads = "images"
    spec = __name__
    torch_module = "toy.mlp_torch"
    tf_module = "toy.mlp_tf"

    hidden_size: int = key(CURVE, at_least=1, at_most=512)


MODELS["mlp"] = MlpSettings


def build_hf_config(config: Config, cache: Cache, source: object) -> dict[str, Any]:
    """Return the contents of config.json. `source` is a pretrained checkpoint, which this model does not use."""
    assert isinstance(config.model, MlpSettings) and isinstance(cache, ImageCache)
    return {
        "model_type": "mlp",
        "image_shape": cache.image_shape,
        "hidden_size": config.model.hidden_size,
        "dropout": config.model.dropout,
        "id2label": dict(enumerate(cache.classes)),
    }


def get_parameter_shapes(hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters by name, in PyTorch's layout: (outputs, inputs)."""
    inputs, hidden = math.prod(hf_config["image_shape"]), hf_config["hidden_size"]
    classes = len(hf_config["id2label"])
    return {
        "fc1.weight": (hidden, inputs),
        "fc1.bias": (hidden,),
        "fc2.weight": (classes, hidden),
        "fc2.bias": (classes,),
    }


def draw_parameter(
    hf_config: Mapping[str, Any], name: str, shape: tuple[int, ...], stream: np.random.Generator
) -> np.ndarray:
    """Return the initial value of a parameter, float32: random for a weight, 0 for a bias."""
    scale = 1 / math.sqrt(shape[1]) if name.endswith(".weight") else 0
    return (stream.standard_normal(shape) * scale).astype(np.float32)
