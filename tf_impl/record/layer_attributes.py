"""Attributes of Keras layers that a rehearsal may change."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import tensorflow as tf

from common.recording.layer_attributes import LayerAttributes
from tf_impl.record.model_facts import Layer, find_layer_class


def keep_attributes(models: Iterable[Layer]) -> LayerAttributes:
    """Keep the plain attributes of models and of all their layers. A layer that the pass builds keeps its own."""
    layers = list({id(layer): layer for model in models for layer in model._flatten_layers()}.values())
    ignored = {name for layer in layers for name in _list_internal(find_layer_class(layer))}
    return LayerAttributes(layers, ignored, tf.Tensor, lambda _: _keep_values, _list_parts)


@cache
def _list_internal(layer_class: type) -> tuple[str, ...]:
    """Return the names of the attributes of every layer."""
    return tuple(vars(layer_class(name="plain")))


def _list_parts(layer: Layer) -> list[object]:
    names = ("_trainable_variables", "_non_trainable_variables", "_trainable_weights", "_non_trainable_weights")
    variables = [variable for name in names for variable in vars(layer).get(name, ())]
    return [bool(layer.built), *layer._flatten_layers(recursive=False, include_self=False), *variables]


def _keep_values() -> None:
    """Do nothing: TensorFlow's tensors never change."""
