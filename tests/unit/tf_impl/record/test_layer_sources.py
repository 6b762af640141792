"""Tests of the layers from which tensors come."""

from tests.unit.common.recording.tensors import to_tensor
from tf_impl.record.layer_sources import LayerSources


def test_the_innermost_layer_is_the_source_of_a_tensor() -> None:
    sources, tensor = LayerSources(), to_tensor([1.0, 2.0])
    sources.add_layer("block.conv", [tensor])
    sources.add_layer("block", [tensor])
    assert sources.find(tensor) == {"block.conv"}
    assert sources.find(tensor.copy()) == set()
    assert sources.find(None) == set()


def test_a_result_comes_from_all_layers_whose_outputs_are_its_operands() -> None:
    sources = LayerSources()
    first, second, total, other = (to_tensor([number, 2.0]) for number in range(4))
    sources.add_layer("first", [first])
    sources.add_layer("second", [second])
    sources.add_operation([first, second, other], [total])
    assert sources.find(total) == {"first", "second"}
    sources.add_layer("third", [total])
    assert sources.find(total) == {"third"}
    sources.add_operation([other], [first])
    assert sources.find(first) == {"first"}


def test_a_tensor_that_is_gone_is_not_confused_with_a_new_one() -> None:
    sources = LayerSources()
    for number in range(100):
        tensor = to_tensor([number, 2.0])
        assert sources.find(tensor) == set()
        sources.add_layer("conv", [tensor])
        del tensor  # the next one may have its identity
