"""What both sides must build alike: a model's config.json, the shapes of its parameters, and their initial values."""

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

from common.config.models import ModelSettings
from common.config.schema import Config
from common.data.cache import Cache
from common.models.pretrained import SourceCheckpoint

LARGE_EMBEDDING = 2**20  # numbers; of one as large, strategies reduce the rows that a batch uses and no others


class ModelSpec(Protocol):
    """A module such as common.models.bert. Names and shapes are PyTorch's: (outputs, inputs, *window) of a kernel."""

    def build_hf_config(self, config: Config, cache: Cache, source: SourceCheckpoint | None) -> dict[str, Any]:
        """The model's config.json. Raises UserError for data that does not fit the model."""

    def get_parameter_shapes(self, hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name."""

    def draw_parameter(
        self, hf_config: Mapping[str, Any], name: str, shape: tuple[int, ...], stream: np.random.Generator
    ) -> np.ndarray:
        """The random initial value of a parameter, float32, from a stream of its own."""


def load_spec(model: ModelSettings) -> ModelSpec:
    """The spec of a model's kind."""
    return cast(ModelSpec, import_module(model.spec))


def count_parameters(model: ModelSettings, hf_config: Mapping[str, Any]) -> int:
    """The numbers in all parameters of a model."""
    return sum(map(math.prod, load_spec(model).get_parameter_shapes(hf_config).values()))
