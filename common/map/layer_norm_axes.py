"""Layer norms over several axes, such as the axes of an image.

PyTorch's scale has the axes (channels, height, width), and Keras's (height, width, channels). The sizes usually show
whether the axes have another order. If all sizes are equal, the axes count as those of an image if the model has
convolutions of images with as many axes. The proof shows whether that is right.
"""

from collections.abc import Sequence
from dataclasses import replace

from common.map.sublayers import KerasTarget, Sublayer
from common.map.transformation import TransformationStep


def align_layer_norms(torch_sublayers: Sequence[Sublayer], keras_sublayers: Sequence[Sublayer]) -> list[Sublayer]:
    """Return Keras's sublayers, with layer norms over several axes as sublayers of PyTorch's sizes."""
    # The sizes of a convolution are (groups, outputs, inputs, *window).
    window_axes = {len(sublayer.sizes) - 3 for sublayer in torch_sublayers if sublayer.kind == "convolution"}
    torch_norms, keras_norms = _select_norms(torch_sublayers), _select_norms(keras_sublayers)
    if len(torch_norms) != len(keras_norms):
        return list(keras_sublayers)
    aligned = {
        id(keras): _move_channels(keras, torch.sizes, window_axes)
        for torch, keras in zip(torch_norms, keras_norms, strict=True)
    }
    return [aligned.get(id(sublayer), sublayer) for sublayer in keras_sublayers]


def _select_norms(sublayers: Sequence[Sublayer]) -> list[Sublayer]:
    return [sublayer for sublayer in sublayers if sublayer.kind == "layer norm" and len(sublayer.sizes) > 1]


def _move_channels(keras: Sublayer, sizes: tuple[int, ...], window_axes: set[int]) -> Sublayer:
    """Return a layer norm of Keras as one of PyTorch's sizes if its channels are PyTorch's first axis."""
    is_same = keras.sizes == sizes and len(sizes) - 1 not in window_axes
    if is_same or keras.sizes != (*sizes[1:], sizes[0]):
        return keras
    step = TransformationStep("transpose", (*range(1, len(sizes)), 0))
    targets = {
        role: KerasTarget(target.name, (step,))
        for role, target in keras.variables.items()
        if isinstance(target, KerasTarget)
    }
    return replace(keras, sizes=sizes, variables=targets)
