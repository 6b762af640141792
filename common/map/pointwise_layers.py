"""Alignment of layers of different kinds or sizes that compute the same.

Linear layers compute the same as convolutions whose window has a single element, and a convolution with a window
(1, k) the same as one with a window k and an axis less. A convolution of one channel whose window is as wide as its
input computes the same as a convolution with one axis less, whose channels are the columns of the input:
Conv2d(1, k, (3, width)) and Conv2d(1, k, (width, 3)) compute what Conv1d(width, k, 3) computes. Networks of texts are
written in all of these ways.

The size of a linear layer is the shape of its weight in PyTorch, (outputs, inputs). The size of a convolution is
(groups, outputs, inputs, *window).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

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


def align_windows(torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> list[Sublayer]:
    """Return PyTorch's sublayers, with as many window axes in some convolutions as Keras's have.

    The sizes of a convolution change if Keras has no convolution of its sizes, but one of the changed sizes.

    Args:
        torch_sublayers: PyTorch's sublayers.
        keras_sublayers: Keras's sublayers.
    """
    keras_sizes = {sublayer.sizes for sublayer in keras_sublayers if sublayer.kind == "convolution"}
    return [
        _align_window(sublayer, keras_sizes)
        if sublayer.kind == "convolution" and sublayer.sizes not in keras_sizes
        else sublayer
        for sublayer in torch_sublayers
    ]


def _align_window(sublayer: Sublayer, keras_sizes: set[tuple[int, ...]]) -> Sublayer:
    """Return a convolution with the first of its equivalent sizes that Keras has, or the same."""
    for sizes, steps in _list_equivalents(sublayer.sizes):
        if sizes in keras_sizes:
            weight = sublayer.variables["weight"]
            assert isinstance(weight, TorchSources)
            variables = {**sublayer.variables, "weight": replace(weight, steps=(*weight.steps, *steps))}
            return replace(sublayer, sizes=sizes, variables=variables, output=None)  # the arrays have other axes
    return sublayer


def _list_equivalents(sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[TransformationStep, ...]]]:
    """Yield the sizes of convolutions that can compute the same, and the steps from PyTorch's weight to theirs."""
    groups, outputs, inputs, *window = sizes
    if groups == 1 == inputs and len(window) > 1:
        for axis in reversed(range(len(window))):
            shorter = [*window[:axis], *window[axis + 1 :]]
            # From (outputs, *window) to (outputs, window[axis], *shorter)
            axes = (0, axis + 1, *(1 + number for number in range(len(window)) if number != axis))
            steps = TransformationStep("reshape", (outputs, *window)), TransformationStep("transpose", axes)
            yield (groups, outputs, window[axis], *shorter), steps
    narrow = [size for size in window if size > 1]
    for count, axis in product(range(4 - len(narrow)), range(len(narrow) + 1)):
        others = (*narrow[:axis], *[1] * count, *narrow[axis:])
        if others and len(others) != len(window):  # (1, 3) and (3, 1) compute something else
            yield (groups, outputs, inputs, *others), (TransformationStep("reshape", (outputs, inputs, *others)),)


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
