"""Tests of the alignment of layers of different kinds and sizes that compute the same."""

import numpy as np
import pytest

from common.map.pointwise_layers import align_pointwise_layers, align_windows
from common.map.sublayers import KerasTarget, Sublayer, TorchSources
from common.map.transformation import ParameterTransformation, SourceParameter

LINEAR, CONVOLUTION = ("linear", (4, 3)), ("convolution", (1, 4, 3, 1))
TORCH = TorchSources((SourceParameter("weight"),))


def _build(kinds: str, is_torch: bool) -> list[Sublayer]:
    """Return sublayers of one size. kinds: "l" and "c" for linear layers and convolutions."""
    return [
        Sublayer(name, f"layer{index}", sizes, {"weight": TORCH if is_torch else KerasTarget("kernel")})
        for index, kind in enumerate(kinds)
        for name, sizes in [LINEAR if kind == "l" else CONVOLUTION]
    ]


@pytest.mark.parametrize(
    ("torch", "keras", "aligned"),
    [
        ("cc", "ll", "ll"),
        ("l", "c", "c"),
        ("lc", "ll", "ll"),
        ("ll", "cl", "cl"),
        ("lc", "cl", "lc"),
        ("cc", "lll", "cc"),
    ],
)
def test_layers_of_one_size_are_counterparts_in_their_order(torch: str, keras: str, aligned: str) -> None:
    sublayers = align_pointwise_layers(_build(torch, is_torch=True), _build(keras, is_torch=False))
    assert "".join(sublayer.kind[0] for sublayer in sublayers) == aligned
    for before, sublayer in zip(torch, sublayers, strict=True):
        weight = sublayer.variables["weight"]
        assert isinstance(weight, TorchSources)
        shapes = [step.numbers for step in weight.steps]
        assert shapes == ([] if before == sublayer.kind[0] else [(4, 3) if before == "c" else (4, 3, 1)])


@pytest.mark.parametrize(
    ("torch", "keras", "axes"),
    [
        ((4, 3, 1, 5), (4, 3, 5), None),
        ((4, 3, 5), (4, 3, 5, 1), None),
        ((4, 3, 1, 1), (4, 3, 1), None),
        ((4, 1, 5, 7), (4, 7, 5), (0, 2, 1)),
        ((4, 1, 7, 5), (4, 7, 5), (0, 1, 2)),
    ],
)
def test_convolutions_get_the_number_of_axes_of_their_counterparts(
    torch: tuple[int, ...], keras: tuple[int, ...], axes: tuple[int, ...] | None
) -> None:
    sublayer = Sublayer("convolution", "conv", (1, *torch), {"weight": TORCH}, "conv")
    other = Sublayer("convolution", "conv", (1, *keras), {"weight": KerasTarget("kernel")}, "conv")
    (aligned,) = align_windows([sublayer], [other])
    weight = aligned.variables["weight"]
    assert isinstance(weight, TorchSources)
    assert (aligned.sizes, aligned.output) == ((1, *keras), None)
    array = np.arange(np.prod(torch)).reshape(torch)
    squeezed = array.squeeze() if axes is None else array.squeeze(1).transpose(axes)
    converted = ParameterTransformation(weight.sources, steps=weight.steps).to_keras({"weight": array})
    assert np.array_equal(converted, squeezed.reshape(keras))


def test_windows_along_other_axes_are_no_counterparts() -> None:
    sublayer = Sublayer("convolution", "conv", (1, 4, 3, 1, 5), {"weight": TORCH}, "conv")
    other = Sublayer("convolution", "conv", (1, 4, 3, 5, 1), {"weight": KerasTarget("kernel")}, "conv")
    assert align_windows([sublayer], [other]) == [sublayer]
