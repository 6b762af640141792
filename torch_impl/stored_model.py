"""A user's module that loads and saves weight files and computes its outputs, in its own types or in float64.

Every method builds the model anew, as a user's program does.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from common.errors import UserError, describe_error
from common.map.description import Arrays
from common.map.factory import call_factory
from common.map.input_specs import InputSpec
from common.models.loaded_weights import LoadedWeights
from torch_impl.float64 import keep_float64
from torch_impl.input_adapter import build_input_adapter
from torch_impl.nested_tensors import name_tensors
from torch_impl.weight_file import load_weight_file, read_weights, save_weight_file, set_weights

OWN_TYPE = torch.get_default_dtype()


class StoredModel:
    """The factory of a user's model, and the inputs for its forward passes."""

    def __init__(
        self,
        key: str,
        factory: str,
        arguments: Mapping[str, object],
        inputs: Mapping[str, InputSpec],
        arrays: Mapping[str, np.ndarray],
        seed: int,
    ) -> None:
        """Store the arguments, which have the same meaning as in DescribedModel."""
        self.key, self.factory, self.arguments, self.seed = key, factory, arguments, seed
        self.inputs, self.arrays = inputs, arrays
        torch.backends.mha.set_fastpath_enabled(False)  # the fast path returns zeros for padded positions

    def weights(self) -> Arrays:
        """Return the variables with the initial values that the factory draws."""
        return read_weights(self._build())

    def load(self, location: str, path: Path) -> LoadedWeights:
        """Load a file into the model. Raise UserError if the file does not fit the model.

        Args:
            location: The key and the file for errors, such as weights=model.pt.
            path: The path of the file.
        """
        return load_weight_file(self._build(), location, path)

    def save(self, location: str, path: Path, weights: Arrays) -> None:
        """Save the model with some of its variables set. Raise UserError if the file cannot be written.

        Args:
            location: The key and the file for errors, such as weights=model.pt.
            path: The path of the file.
            weights: The variables to set by name.
        """
        model = self._build()
        set_weights(model, weights)
        save_weight_file(model, location, path)

    def compute(self, location: str, path: Path, weights: Arrays, in_float64: bool) -> Arrays:
        """Load a file into the model, and return the outputs of the model in evaluation mode. Raise UserError.

        Args:
            location: The key and the file for errors, such as weights=model.pt.
            path: The path of the file.
            weights: The variables to set after loading, by name.
            in_float64: Whether to build the model in float64; otherwise it has its own types.
        """
        model = self._build(in_float64)
        load_weight_file(model, location, path)
        set_weights(model, weights)
        outputs = self._call(model, in_float64).items()
        return {name: (x.double() if x.is_floating_point() else x).numpy() for name, x in outputs}

    def _build(self, in_float64: bool = False) -> torch.nn.Module:
        """Build the model. A pass creates the parameters of lazy layers."""
        torch.set_default_dtype(torch.float64 if in_float64 else OWN_TYPE)
        torch.manual_seed(self.seed)
        with keep_float64() if in_float64 else nullcontext():
            model = call_factory(self.key, self.factory, self.arguments)
        model = model.double() if in_float64 else model
        self._call(model.eval(), in_float64)
        return model

    def _call(self, model: torch.nn.Module, in_float64: bool) -> dict[str, torch.Tensor]:
        channels = [name for name, spec in self.inputs.items() if spec.channels]
        adapt = build_input_adapter(self.key, model, list(self.inputs), channels)
        dtype = torch.get_default_dtype()
        tensors = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        args, kwargs = adapt({name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()})
        try:
            with torch.no_grad(), keep_float64() if in_float64 else nullcontext():
                return name_tensors(model(*args, **kwargs))
        except Exception as error:
            raise UserError(f"{self.key}={self.factory}: its forward pass raised {describe_error(error)}") from error
