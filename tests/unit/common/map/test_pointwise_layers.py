"""Tests of the alignment of linear layers with convolutions of single elements."""

import pytest

from common.map.pointwise_layers import align_pointwise_layers
from common.map.sublayers import KerasTarget, Sublayer, TorchSources
from common.map.transformation import SourceParameter

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
