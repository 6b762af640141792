"""A Keras model on the PyTorch backend as a module of PyTorch.

Every model is checked for being a KerasModule, so this file must not import Keras at the top, which takes seconds. It
imports Keras in the forward pass of such a model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from common.map.keras_attributes import get_keras_kind, is_recurrent
from common.map.keras_calls import build_keras_adapter, get_training_argument
from common.map.keras_paths import SEED_STATE, layers_by_path, variables_by_path

INNER_PATH = ""  # the path of the module itself, which stands for the Keras model


class KerasModule(torch.nn.Module):
    """A Keras model whose variables are parameters and buffers under Keras's paths, such as dense/kernel.

    Variables that Keras can train are parameters, and the others, such as moving statistics, are buffers. The states of
    random generators are left out. `named_modules` yields Keras's layers by path.

    Attributes:
        keras: The Keras model.
        variables: The Keras variables by path.
        rebuild: A function that builds this module again, since Keras's layers cannot be copied; None before training.
    """

    keras: Any
    rebuild: Callable[[], torch.nn.Module] | None

    def __init__(self, model: Any) -> None:  # noqa: ANN401  a keras.Layer
        """Wrap the model of a user's factory. Layers may create their variables at the first call."""
        super().__init__()
        object.__setattr__(self, "keras", model)  # torch would register the layer, whose parameters have other names
        self.rebuild = None
        self.variables: dict[str, Any] = {}
        self._called_modes: set[bool] = set()
        self.register_variables()

    def register_variables(self) -> None:
        """Make the variables that layers have created so far parameters and buffers."""
        trainable = {id(variable) for layer in self.keras._flatten_layers() for variable in layer._trainable_variables}
        for name, variable in variables_by_path(self.keras).items():
            if variable.name == SEED_STATE or name in self.variables:
                continue
            self.variables[name] = variable
            if id(variable) in trainable:
                self.register_parameter(name, variable._value)
            else:
                self.register_buffer(name, variable._value.detach())

    def build_adapter(
        self, key: str, names: Sequence[str]
    ) -> Callable[[Mapping[str, torch.Tensor]], tuple[tuple[Any, ...], dict[str, torch.Tensor]]]:
        """Return a function that converts the inputs of a batch by name to the arguments of the Keras model."""
        return build_keras_adapter(key, self.keras, names)

    def layers(self) -> dict[str, Any]:
        """Return the Keras model and its layers by path, without the cells of recurrent layers."""
        layers = layers_by_path(self.keras)
        inner = {id(cell) for layer in layers.values() if is_recurrent(layer) for cell in _list_inner_layers(layer)}
        named = {path: layer for path, layer in layers.items() if id(layer) not in inner and layer is not self.keras}
        return {INNER_PATH: self.keras, **named}

    def list_batch_norm_variables(self) -> list[str]:
        """Return the paths of the moving means and variances of BatchNorm layers."""
        layers = [layer for layer in self.layers().values() if get_keras_kind(layer) == "BatchNormalization"]
        statistics = {id(variable) for layer in layers for variable in layer.non_trainable_variables}
        return [path for path, variable in self.variables.items() if id(variable) in statistics]

    def seed_generators(self, seed: int) -> None:
        """Seed the random generators of Keras's layers."""
        seed_layers(self.keras, seed)

    def read_generators(self) -> list[bytes]:
        """Return the states of the random generators of Keras's layers, which change when a layer draws."""
        return [variable.numpy().tobytes() for variable in self.keras.variables if variable.name == SEED_STATE]

    @override
    def forward(self, *args: object, **kwargs: object) -> object:
        for name, variable in self.variables.items():
            # A strategy may have replaced the tensors, by copies of the parameters or by buffers on another device.
            variable._value = self._parameters[name] if name in self._parameters else self._buffers[name]
        with self._select_device():
            outputs = self.keras(*args, **kwargs, **get_training_argument(self.keras, self.training))
        if self.training not in self._called_modes:  # layers may create variables in their first call of a mode
            self._called_modes.add(self.training)
            self.register_variables()
        return outputs

    def _select_device(self) -> AbstractContextManager[object]:
        """Make Keras compute on the device of the variables. Otherwise Keras moves the inputs to its own device."""
        import keras

        variable = next(iter(self.variables.values()), None)
        return nullcontext() if variable is None else keras.device(str(variable._value.device))

    @override
    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield this module and Keras's layers. The parameters of the layers belong to this module."""
        yield prefix, self
        for path, layer in self.layers().items():
            if layer is not self.keras:
                yield (f"{prefix}.{path}" if prefix else path), layer

    def __deepcopy__(self, memo: dict[int, object]) -> torch.nn.Module:
        """Build the model again, with equal values. Layers of Keras cannot be copied."""
        assert self.rebuild is not None
        copied = self.rebuild()
        copied.load_state_dict(self.state_dict())
        for (_, layer), (_, copied_layer) in zip(self.named_modules(), copied.named_modules(), strict=True):
            if hasattr(layer, "sum_over_replicas"):
                copied_layer.sum_over_replicas = layer.sum_over_replicas  # all copies share the object
        return copied.train(self.training)


def _list_inner_layers(layer: Any) -> list[Any]:  # noqa: ANN401  a keras.Layer, and its layers
    return list(layer._flatten_layers(include_self=False))


def seed_layers(model: Any, seed: int) -> None:  # noqa: ANN401  a keras.Layer
    """Seed the random generators of Keras's layers."""
    for variable in model.variables:
        if variable.name == SEED_STATE:
            variable.assign(np.full(variable.shape, seed))
