"""Interface of a model's spec: its config.json, the shapes of its parameters, and their initial values.

Both sides, PyTorch and TensorFlow, build their models from the spec, so that the models have the same parameters.
"""

import math
from importlib import import_module
from typing import Protocol, cast

import numpy as np

from common.config.models import ModelSettings
from common.config.schema import Config
from common.data.cache import Cache
from common.models.hf_config import HfConfig
from common.models.pretrained import SourceCheckpoint

# An embedding with at least this number of values is large. Strategies reduce only the rows of its gradient that belong
# to tokens of the batch.
LARGE_EMBEDDING = 2**20


class ModelSpec(Protocol):
    """Interface of a spec, which is a module such as common.models.bert.

    Names and shapes of parameters are PyTorch's. The weight of a layer has the shape (outputs, inputs), or of a
    convolution (outputs, inputs, height, width).
    """

    def build_hf_config(self, config: Config, cache: Cache, source: SourceCheckpoint | None) -> HfConfig:
        """Return the contents of the model's config.json. Raise UserError if the data does not fit the model.

        Args:
            config: The config of the run.
            cache: The data, which decides the sizes of the input and the output.
            source: The pretrained checkpoint; None for random weights.
        """

    def get_parameter_shapes(self, hf_config: HfConfig) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters by name."""

    def list_transformations(self, hf_config: HfConfig) -> list[str] | None:
        """Return the transformation of each Keras variable from PyTorch's parameters; None if there is no Keras model.

        A transformation is written as in a map file. Only `optimizer.semantics=keras` of Adafactor and Muon needs it.
        """

    def draw_parameter(
        self, hf_config: HfConfig, name: str, shape: tuple[int, ...], stream: np.random.Generator
    ) -> np.ndarray:
        """Return the random initial value of a parameter, float32. `stream` is used for this parameter only."""


def load_spec(model: ModelSettings) -> ModelSpec:
    """Return the spec module that the settings of a model name."""
    return cast(ModelSpec, import_module(model.spec))


STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


def count_parameters(model: ModelSettings, hf_config: HfConfig) -> int:
    """Return the number of values in all parameters of a model."""
    return sum(map(math.prod, load_spec(model).get_parameter_shapes(hf_config).values()))


def get_trained_shapes(model: ModelSettings, hf_config: HfConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that the model itself does not freeze, without moving statistics."""
    others = {*hf_config.get("frozen", ()), *hf_config.get("statistics", ()), *hf_config.get("buffers", ())}
    shapes = load_spec(model).get_parameter_shapes(hf_config)
    return {name: shape for name, shape in shapes.items() if name not in others and not name.endswith(STATISTICS)}
