"""Tests of the layers from which tensors come."""

from common.recording.layer_sources import LayerSources
from tests.unit.common.recording.tensors import to_tensor


def test_the_innermost_layer_is_the_source_of_a_tensor() -> None:
    sources, tensor = LayerSources(), to_tensor([1.0, 2.0])
    sources.add("block.conv", tensor)
    sources.add("block", tensor)
    sources.add("loss", None)
    assert sources.find(tensor) == "block.conv"
    assert sources.find(tensor.copy()) == ""
    assert sources.find(None) == ""


def test_a_tensor_that_is_gone_is_not_confused_with_a_new_one() -> None:
    sources = LayerSources()
    for number in range(100):
        tensor = to_tensor([number, 2.0])
        assert sources.find(tensor) == ""
        sources.add("conv", tensor)
        del tensor  # the next one may have its identity
