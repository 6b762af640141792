"""Dropout and noise layers of Keras: what they do, and how to disable them.

No process of `common` imports Keras, so this reads the classes by name.
"""

from collections.abc import Sequence
from inspect import signature
from numbers import Real
from typing import Any

from common.map.keras_classes import KERAS_PACKAGES, find_keras_class, is_keras_class
from common.map.noise import Noise, Operation, Unit

# The operation and the unit of each class of Keras.
NOISE_OF_CLASSES: dict[str, tuple[Operation, Unit]] = {
    "Dropout": ("drop", "element"),
    "SpatialDropout1D": ("drop", "channel"),
    "SpatialDropout2D": ("drop", "channel"),
    "SpatialDropout3D": ("drop", "channel"),
    "AlphaDropout": ("alpha", "element"),
    "GaussianDropout": ("multiply", "element"),
    "GaussianNoise": ("add", "element"),
}
KERAS_LAYERS = tuple(f"{package}.src.layers." for package in KERAS_PACKAGES)
RATES = ("rate", "stddev")  # names of the rates of dropout and noise layers
INNER_RATES = ("dropout", "recurrent_dropout")  # names of the rates of attentions and recurrent layers


def is_noise_layer(layer: Any) -> bool:  # noqa: ANN401  a keras.Layer, as below
    """Check whether a layer is one of Keras's own dropout or noise layers."""
    return is_keras_class(type(layer)) and type(layer).__name__ in NOISE_OF_CLASSES


def get_keras_noise(layer: Any) -> Noise | None:  # noqa: ANN401
    """Return the noise of one of Keras's own layers; None without noise that can be aligned."""
    if not is_noise_layer(layer) or getattr(layer, "data_format", None) == "channels_first":
        return None
    operation, default_unit = NOISE_OF_CLASSES[type(layer).__name__]
    noise_shape = getattr(layer, "noise_shape", None)
    unit = default_unit if noise_shape is None else _get_unit(noise_shape)
    strength = layer.stddev if operation == "add" else layer.rate
    if operation == "multiply":
        strength = (strength / (1 - strength)) ** 0.5
    return Noise(operation, unit, strength) if unit and strength > 0 else None


def is_dropping(layer: Any) -> bool:  # noqa: ANN401
    """Check whether a layer drops by a rate of its own. An attention does not: the dropout layer inside it does."""
    names = RATES if _has_own_rates(layer) else INNER_RATES
    rates = [getattr(layer, name, 0.0) for name in names]
    return any(isinstance(rate, float) and rate > 0 for rate in rates) and not _has_dropout_layers(layer)


def set_rates_to_zero(layer: Any) -> None:  # noqa: ANN401
    """Disable the dropout and the noise of a layer that has a rate."""
    for name in RATES if _has_own_rates(layer) else ():
        if hasattr(layer, name):
            setattr(layer, name, 0.0)
    if _has_dropout_layers(layer):
        return  # with a rate of 0 an attention would not call its dropout layer
    for name in INNER_RATES:
        if isinstance(vars(layer).get(name), float):
            setattr(layer, name, 0.0)


def may_have_noise(layer: Any) -> bool:  # noqa: ANN401
    """Check whether a layer of the user may add noise: a layer with one input, without weights and inner layers."""
    parameters = [name for name in signature(layer.call).parameters if name != "training"]
    return (
        not type(layer).__module__.startswith(KERAS_LAYERS)
        and layer.built
        and not layer.weights
        and not any(True for _ in layer._flatten_layers(include_self=False))
        and len(parameters) == 1
    )


def find_numbers(layer: object) -> dict[str, float]:
    """Return the numbers among the attributes of a layer by name."""
    return {
        name: float(value)
        for name, value in vars(layer).items()
        if isinstance(value, Real) and not isinstance(value, bool)
    }


def _has_own_rates(layer: Any) -> bool:  # noqa: ANN401
    return is_noise_layer(layer) or "Dropout" in type(layer).__name__


def _has_dropout_layers(layer: Any) -> bool:  # noqa: ANN401
    """Check whether a layer contains dropout layers, as an attention does for its probabilities."""
    return any(find_keras_class(inner, "Dropout") for inner in layer._flatten_layers(include_self=False))


def _get_unit(noise_shape: Sequence[int | None]) -> Unit | None:
    """Return the unit that gets one random number in a layer with a noise shape; None: cannot be aligned."""
    examples, *axes = noise_shape
    if examples is not None or not {*axes} <= {None, 1}:
        return None
    if len({*axes}) == 1:
        return "element" if axes[0] is None else "example"
    return "channel" if axes.index(None) == len(axes) - 1 else None
