"""A user's module in float64: what it consists of, what it computes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from common.errors import UserError, describe_error
from common.map.description import Computed, Description, Dropout, Layer, Variable
from common.map.factory import build_with, user_files
from common.map.inputs import Input
from torch_impl.attention import UnfoldedAttention, set_dropout_batch_first, unfold_attention
from torch_impl.dropout import ALIGNED
from torch_impl.forward_trace import ForwardTrace, get_layer_attributes, get_layer_kind
from torch_impl.input_adapter import build_input_adapter
from torch_impl.nested_tensors import name_tensors

KEY = "model.torch"


class DescribedModel:
    """The model of a factory, with the inputs on which it is computed. inputs and arrays: by name."""

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        inputs: Mapping[str, Input],
        arrays: Mapping[str, np.ndarray],
        seed: int,
    ) -> None:
        self.factory = factory
        torch.backends.mha.set_fastpath_enabled(False)  # it would enter no layers
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(seed)
        model = build_with(KEY, factory, arguments)
        if not isinstance(model, torch.nn.Module):
            raise UserError(f"{KEY}={factory}: returned {type(model).__name__}, not a torch.nn.Module")
        self.model = model.double()
        self.inputs = {name: torch.from_numpy(arrays[name]) for name in inputs}
        channels = [name for name, each in inputs.items() if each.channels]
        self.arguments = build_input_adapter(KEY, model, list(inputs), channels)
        with torch.no_grad():
            self.outputs = self._call(training=False)  # creates what lazy layers create at their first call
        unfold_attention(model, UnfoldedAttention)
        set_dropout_batch_first(model)
        self.dropouts, self.noise = find_dropouts(model)
        disable_dropout(model)
        self.channels = bool(channels)

    def describe(self) -> Description:
        """The layers that a forward pass enters, and the variables."""
        with ForwardTrace(self.model) as trace, torch.no_grad():
            self._call(training=False)
        functions = self._functions_that_drop()
        found = self._variables()
        names = {id(each): name for name, each in found.items()}
        layers, used, updated = [], set(), set()
        for path, module in trace.entered.items():
            mine = {role: names[id(each)] for role, each in _own(module).items() if id(each) in names}
            used |= set(mine.values())
            updated |= {name for role, name in mine.items() if role.startswith("running_")}
            if mine:
                kind, attributes = get_layer_kind(module), get_layer_attributes(module)
                layers.append(Layer(kind, path, attributes, mine, trace.flattened.get(path)))
        variables = {
            name: Variable(
                name,
                tuple(each.shape),
                isinstance(each, torch.nn.Parameter) and each.requires_grad,
                constant=not isinstance(each, torch.nn.Parameter) and name not in updated,
            )
            for name, each in found.items()
        }
        return Description(
            layers,
            variables,
            [name for name in variables if name not in used],
            self.channels,
            {name: tuple(each.shape) for name, each in self.outputs.items()},
            sorted(updated),
            {
                path: Dropout(self.dropouts[path], path, trace.flattened.get(path))
                for path in trace.entered
                if path in self.dropouts
            },
            [*self.noise, *functions],
            user_files(),
        )

    def weights(self) -> dict[str, np.ndarray]:
        """All variables by name."""
        return {name: each.detach().numpy().copy() for name, each in self._variables().items()}

    def read_checkpoint(self, path: str) -> dict[str, np.ndarray]:
        """The tensors of floats of a state dict, weights-only. Raises UserError."""
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UserError(
                f"model.checkpoint={path}: cannot be read ({describe_error(error)}); save a state dict"
            ) from error
        if not isinstance(found, Mapping) or not all(isinstance(each, torch.Tensor) for each in found.values()):
            raise UserError(f"model.checkpoint={path}: is not a state dict; save model.state_dict()")
        return {name: each.double().numpy() for name, each in found.items() if each.is_floating_point()}

    def compute(
        self, weights: Mapping[str, np.ndarray], training: bool, projections: Mapping[str, np.ndarray]
    ) -> Computed:
        """A forward pass with these weights; with its gradients where there are projections of the outputs."""
        variables = self._variables()
        with torch.no_grad():
            for name, array in weights.items():
                variables[name].copy_(torch.from_numpy(array))
        with ForwardTrace(self.model) as trace:
            outputs = self._call(training)
        gradients = {}
        if projections:
            trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
            loss = sum((outputs[name] * torch.from_numpy(each)).sum() for name, each in projections.items())
            assert isinstance(loss, torch.Tensor)
            gradients = {name: np.zeros(each.shape) for name, each in trained.items()}
            if trained and loss.requires_grad:
                found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
                gradients = {name: each.numpy() for name, each in zip(trained, found, strict=True)}
        returned = {name: each.detach().numpy() for name, each in outputs.items()}
        return Computed(returned, trace.calls, gradients, self.weights())

    def _functions_that_drop(self) -> list[str]:
        """Layers that call functions of dropout in training mode."""
        before = self.weights()
        with ForwardTrace(self.model) as trace, torch.no_grad():
            self._call(training=True)
            for name, each in self._variables().items():
                each.copy_(torch.from_numpy(before[name]))
        return trace.noise

    def _variables(self) -> dict[str, torch.Tensor]:
        """Those of floats by name, read at each use: a forward pass may put another tensor in a buffer's place."""
        return {name: each for name, each in _named(self.model).items() if each.is_floating_point()}

    def _call(self, training: bool) -> dict[str, torch.Tensor]:
        self.model.train(training)
        try:
            args, kwargs = self.arguments(self.inputs)
            returned = self.model(*args, **kwargs)
        except Exception as error:
            raise UserError(f"{KEY}={self.factory}: its forward pass raised {describe_error(error)}") from error
        found = name_tensors(returned)
        if not any(each.is_floating_point() for each in found.values()):
            raise UserError(f"{KEY}={self.factory}: its forward pass returned no tensor of floats")
        return found


def find_dropouts(model: torch.nn.Module) -> tuple[dict[str, float], list[str]]:
    """Rates of the layers that `align_dropout` replaces, by path, and other layers that drop.

    Attentions are unfolded: they have dropout layers.
    """
    found, others = {}, []
    for name, module in model.named_modules():
        rate = getattr(module, "p" if "Dropout" in type(module).__name__ else "dropout", 0.0)
        if isinstance(rate, float) and rate > 0 and not isinstance(module, UnfoldedAttention):
            if type(module) in ALIGNED:
                found[name or "model"] = rate
            else:
                others.append(f"{name or 'model'} ({type(module).__name__})")
    return found, others


def disable_dropout(model: torch.nn.Module) -> None:
    """The two frameworks draw different masks. Functions are handled in the trace."""
    for module in model.modules():
        for name in ("dropout", *(["p"] if "Dropout" in type(module).__name__ else [])):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, tied ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _own(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those of a layer by role: of an attention also those of its output projection."""
    inner = get_layer_kind(module) == "MultiheadAttention"
    return {**dict(module.named_parameters(recurse=inner)), **dict(module.named_buffers(recurse=inner))}
