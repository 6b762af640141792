"""The interface of a model's spec: its config.json, the shapes of its parameters, and their initial values.

Both sides build their models from the spec, so that the models have the same parameters.
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

# The number of values above which an embedding is large. For a large embedding, strategies reduce only the rows that a
# batch uses.
LARGE_EMBEDDING = 2**20


class ModelSpec(Protocol):
    """A module such as common.models.bert.

    Names and shapes of parameters are PyTorch's. A kernel has the shape (outputs, inputs, *window).
    """

    def build_hf_config(self, config: Config, cache: Cache, source: SourceCheckpoint | None) -> HfConfig:
        """Return the model's config.json. Raise UserError if the data does not fit the model."""

    def get_parameter_shapes(self, hf_config: HfConfig) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters by name."""

    def draw_parameter(
        self, hf_config: HfConfig, name: str, shape: tuple[int, ...], stream: np.random.Generator
    ) -> np.ndarray:
        """Return the random initial value of a parameter, float32. Every parameter has its own stream."""


def load_spec(model: ModelSettings) -> ModelSpec:
    """Return the spec of a model's kind."""
    return cast(ModelSpec, import_module(model.spec))


def count_parameters(model: ModelSettings, hf_config: HfConfig) -> int:
    """Return the number of values in all parameters of a model."""
    return sum(map(math.prod, load_spec(model).get_parameter_shapes(hf_config).values()))
