"""Alignment of linear layers with convolutions whose window has a single element: both compute the same.

A convolution of one channel whose window is as wide as its input computes the same as a convolution with one axis less,
whose channels are the columns of the input: Conv2d(1, k, (3, width)) computes what Conv1d(width, k, 3) computes.
Networks of texts are written in both ways.

The size of a linear layer is the shape of its weight in PyTorch, (outputs, inputs). The size of a convolution is
(groups, outputs, inputs, *window).
"""

import math
from dataclasses import replace

from common.map.array_differences import has_strides
from common.map.sublayers import Sublayer, TorchSources
from common.map.transformation import TransformationStep


def align_pointwise_layers(torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> list[Sublayer]:
    """Return PyTorch's sublayers, with linear layers as convolutions or the reverse.

    The sublayers of one size are changed if one model has only one kind of them, the other model another or several
    kinds, and both have equal numbers of them. They are then counterparts in their order.
    The signature of a sublayer is its kind and size. The steps of a weight transform PyTorch's array to that size.

    Args:
        torch_sublayers: PyTorch's sublayers.
        keras_sublayers: Keras's sublayers.
    """
    torch_groups, keras_groups = _group_by_size(torch_sublayers), _group_by_size(keras_sublayers)
    counterparts: dict[int, Sublayer] = {}
    for size, torch_group in torch_groups.items():
        keras_group = keras_groups.get(size, [])
        kinds = [{sublayer.signature for sublayer in group} for group in (torch_group, keras_group)]
        if len(torch_group) != len(keras_group) or kinds[0] == kinds[1] or 1 not in map(len, kinds):
            continue
        for torch_sublayer, keras_sublayer in zip(torch_group, keras_group, strict=True):
            if torch_sublayer.kind != keras_sublayer.kind:
                counterparts[id(torch_sublayer)] = keras_sublayer
    return [
        _reshape(sublayer, counterparts[id(sublayer)]) if id(sublayer) in counterparts else sublayer
        for sublayer in torch_sublayers
    ]


def _group_by_size(sublayers: list[Sublayer]) -> dict[tuple[int, ...], list[Sublayer]]:
    """Return the linear layers and the convolutions of single elements by their outputs and inputs."""
    groups: dict[tuple[int, ...], list[Sublayer]] = {}
    for sublayer in sublayers:
        if (size := _get_pointwise_size(sublayer)) is not None:
            groups.setdefault(size, []).append(sublayer)
    return groups


def align_wide_convolutions(torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> list[Sublayer]:
    """Return PyTorch's sublayers, with an axis less in some convolutions of one channel.

    A convolution loses an axis if Keras has none of its size, but one of the size without that axis.

    Args:
        torch_sublayers: PyTorch's sublayers.
        keras_sublayers: Keras's sublayers.
    """
    signatures = {sublayer.signature for sublayer in keras_sublayers}
    return [_drop_channel(sublayer, signatures) for sublayer in torch_sublayers]


def _drop_channel(sublayer: Sublayer, signatures: set[tuple[str, tuple[int, ...]]]) -> Sublayer:
    weight = sublayer.variables.get("weight")
    if (
        sublayer.kind != "convolution"
        or (sublayer.sizes[0], sublayer.sizes[2]) != (1, 1)
        or len(sublayer.sizes) < 5  # its window has a single axis
        or sublayer.signature in signatures
    ):
        return sublayer
    groups, outputs, _, *window, width = sublayer.sizes
    sizes = (groups, outputs, width, *window)
    if (sublayer.kind, sizes) not in signatures:
        return sublayer
    assert isinstance(weight, TorchSources)
    # From (outputs, *window, width) to (outputs, width, *window)
    axes = (0, len(window) + 1, *range(1, len(window) + 1))
    steps = TransformationStep("reshape", (outputs, *window, width)), TransformationStep("transpose", axes)
    variables = {**sublayer.variables, "weight": replace(weight, steps=(*weight.steps, *steps))}
    return replace(sublayer, sizes=sizes, variables=variables, output=None)  # the arrays have other axes


def _get_pointwise_size(sublayer: Sublayer) -> tuple[int, ...] | None:
    """Return the outputs and inputs of a linear layer or of a convolution of single elements; None for others."""
    if sublayer.kind == "linear":
        return sublayer.sizes
    is_pointwise = sublayer.kind == "convolution" and sublayer.sizes[0] == 1 == math.prod(sublayer.sizes[3:])
    return sublayer.sizes[1:3] if is_pointwise and not has_strides(sublayer.settings) else None


def _reshape(sublayer: Sublayer, counterpart: Sublayer) -> Sublayer:
    """Return a sublayer of PyTorch as one of the kind and size of its counterpart."""
    weight = sublayer.variables["weight"]
    assert isinstance(weight, TorchSources)
    shape = counterpart.sizes if counterpart.kind == "linear" else counterpart.sizes[1:]
    reshaped = replace(weight, steps=(*weight.steps, TransformationStep("reshape", shape)))
    variables = {**sublayer.variables, "weight": reshaped}
    return replace(sublayer, kind=counterpart.kind, sizes=counterpart.sizes, variables=variables)
