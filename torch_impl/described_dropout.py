"""Dropout and noise of a user's model: which layers can be aligned, and a model without them for common.map."""

import copy
from collections.abc import Mapping
from inspect import signature
from numbers import Real

import numpy as np
import torch

from common.map.description import RecordedCall
from common.map.noise import Noise
from common.map.random_layers import read_python_generators, seed_python
from common.map.recognized_noise import explain_input, has_noise, recognize_noise
from torch_impl.aligned_layers import NOISE_OF_CLASSES, find_dropout_layers
from torch_impl.attention import UnfoldedAttention
from torch_impl.keras_module import KerasModule

# The numbers of axes that a layer takes for [n, channels, ...]. For other inputs it drops other elements, or fails.
AXES_OF_CLASSES = {"Dropout1d": (3,), "Dropout2d": (3, 4), "Dropout3d": (5,)}


def find_dropouts(model: torch.nn.Module) -> tuple[dict[str, Noise], list[str]]:
    """Return the noise of the layers that `align_dropout` replaces, by path, and the other layers that draw numbers.

    An unfolded attention does not count, because the dropout layer inside it does.
    """
    if isinstance(model, KerasModule):
        from torch_impl.keras_dropout import find_keras_dropouts

        return find_keras_dropouts(model)
    noises, others = {name or "model": noise for name, noise in find_dropout_layers(model).items()}, []
    for name, module in model.named_modules():
        path = name or "model"
        if type(module) in NOISE_OF_CLASSES:
            continue
        function = _LayerFunction(module)
        noise = recognize_noise(function, function.numbers) if function.may_have_noise else None
        # Attentions and recurrent layers have their rate in `dropout`.
        rate = getattr(module, "p" if "Dropout" in type(module).__name__ else "dropout", 0.0)
        is_dropping = isinstance(rate, float) and rate > 0 and not isinstance(module, UnfoldedAttention)
        if noise is not None:
            noises[path] = noise
        elif is_dropping or (function.may_have_noise and has_noise(function)):
            others.append(f"{path} ({type(module).__name__})")
    return noises, others


def explain_inputs(
    layers: Mapping[str, torch.nn.Module], calls: Mapping[str, RecordedCall], examples: int
) -> list[str]:
    """Return the layers whose inputs do not have the examples in their first axis, as "path (reason)".

    Args:
        layers: Layers with noise, by path.
        calls: Their calls in a pass, by path.
        examples: The number of examples in the pass.
    """
    reasons = {
        path: explain_input(calls[path].received, examples, AXES_OF_CLASSES.get(type(layer).__name__, ()))
        for path, layer in layers.items()
    }
    return [f"{path} ({reason})" for path, reason in reasons.items() if reason]


def disable_dropout(model: torch.nn.Module, noises: Mapping[str, Noise]) -> None:
    """Set all dropout rates to 0, and remove the noise of other layers, because the two frameworks draw differently.

    A ForwardTrace disables dropout that is not a layer but a function.
    """
    if isinstance(model, KerasModule):
        from torch_impl.keras_dropout import disable_keras_dropout

        disable_keras_dropout(model, noises)
        return
    for name, module in model.named_modules():
        for attribute in ("dropout", *(["p"] if "Dropout" in type(module).__name__ else [])):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
        if name in noises and type(module) not in NOISE_OF_CLASSES:
            module.__class__ = torch.nn.Identity


def seed_generators(model: torch.nn.Module, seed: int) -> None:
    """Seed the global random generators and the generators of Keras's layers."""
    seed_python(seed)
    torch.manual_seed(seed)
    if isinstance(model, KerasModule):
        model.seed_generators(seed)


def read_generators(model: torch.nn.Module) -> tuple[object, ...]:
    """Return the states of the random generators that `seed_generators` seeds, as values that can be compared."""
    layers = model.read_generators() if isinstance(model, KerasModule) else ()
    return torch.get_rng_state().numpy().tobytes(), *read_python_generators(), *layers


class _LayerFunction:
    """A layer as a function that `recognize_noise` calls. Each call computes a copy of the layer.

    Attributes:
        may_have_noise: Whether the layer is not PyTorch's own, and has one input, no parameters and no layers in it.
        numbers: The numbers among the layer's attributes.
    """

    def __init__(self, layer: torch.nn.Module) -> None:
        """Examine a layer."""
        self._layer = layer
        self.may_have_noise = (
            not type(layer).__module__.startswith("torch.")
            and not any(True for _ in (*layer.children(), *layer.parameters()))
            and len(signature(layer.forward).parameters) == 1
        )
        self.numbers = _find_numbers(layer).values()

    def __call__(self, inputs: np.ndarray, training: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
        layer, x = copy.deepcopy(self._layer).train(training), torch.from_numpy(inputs).requires_grad_()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            outputs = layer(x * 1)  # not x itself: a layer may not change a leaf in place
        if _find_numbers(layer) != _find_numbers(self._layer):
            raise ValueError("the layer has a state")
        (gradients,) = torch.autograd.grad(outputs.sum(), x, materialize_grads=True)
        return outputs.detach().numpy(), gradients.numpy()


def _find_numbers(layer: torch.nn.Module) -> dict[str, float]:
    """Return the numbers among the attributes of a layer by name, including tensors of one element."""
    values = {**vars(layer), **dict(layer.named_buffers())}
    return {
        name: float(value)
        for name, value in values.items()
        if (isinstance(value, Real) and not isinstance(value, bool))
        or (isinstance(value, torch.Tensor) and value.numel() == 1)
    }
