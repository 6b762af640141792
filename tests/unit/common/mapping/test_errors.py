"""Mistakes in factories, inputs and map files are errors of one line."""

from pathlib import Path

import pytest

from common.errors import UserError
from common.mapping.inputs import draw_inputs, parse_input
from common.mapping.side import Side
from tests.unit.common.mapping.conftest import Matching
from tests.unit.common.mapping.test_pairs import FEATURES, MODELS

NUMBERS = {"tokens": "int32[3,4]<9", "count": "float32[3,3]"}
ERRORS = {  # factories, inputs, what the error says
    "module": ("no_such_models:linear", "linear", FEATURES, "no module tests.unit.common.mapping.no_such_models"),
    "function": ("linaer", "linear", FEATURES, "torch_models has no function linaer"),
    "raised": ("fails", "linear", FEATURES, "torch_models:fails: raised KeyError: 'weights of 2019'"),
    "type": ("no_module", "linear", FEATURES, "returned list, not a torch.nn.Module"),
    "Keras's type": ("linear", "torch_models:linear", FEATURES, "returned Linear, not a keras.Model or keras.Layer"),
    "input": ("two_inputs", "two_inputs", NUMBERS, "inputs.count: model.torch takes no such input; it takes tokens, "),
    "Keras's input": ("plain", "two_inputs", NUMBERS, "inputs.tokens: model.torch takes no such input; it takes x"),
    "forward": ("linear", "linear", {"x": "float32[4,5]"}, "its forward pass raised RuntimeError: mat1 and mat2"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_mistake_is_an_error_of_one_line(matching: Matching, name: str) -> None:
    ours, theirs, inputs, expected = ERRORS[name]
    with pytest.raises(UserError) as raised:
        matching(ours, theirs, inputs)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_arguments_that_a_factory_does_not_take_are_named(matching: Matching) -> None:
    with pytest.raises(UserError, match=r"linear: raised TypeError: .*unexpected keyword argument 'classes'"):
        matching("linear", "linear", FEATURES, classes=3)


def test_both_sides_go_on_after_an_error(matching: Matching) -> None:
    with pytest.raises(UserError):
        matching("fails", "no_such_function", FEATURES)
    assert matching("linear", "linear", FEATURES, bias=False).proven


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dens/kernal: weight", "Keras's model has no such variable; did you mean"),
        ("KERNEL: weigth", "weigth: PyTorch's model has no such variable; did you mean weight?"),
        ("KERNEL: weight | turn 1 0", "turn 1 0: not a step"),
        ("KERNEL: weight | transpose 1", "correct it in model.map"),
        ("KERNEL: weight | reshape 4 6", "correct it in model.map"),
        ("KERNEL: [weight]", "must have lines such as"),
        ("- KERNEL", "must have lines such as"),
        ("KERNEL: 'weight", "cannot be read"),
    ],
)
def test_a_mistake_in_a_map_file_is_named(matching: Matching, line: str, expected: str, tmp_path: Path) -> None:
    (kernel,) = [each.keras for each in matching("linear", "linear", FEATURES, bias=False).pairing.pairs]
    path = tmp_path / "map.yaml"
    path.write_text(line.replace("KERNEL", kernel))
    with pytest.raises(UserError, match=expected) as raised:
        matching("linear", "linear", FEATURES, path, bias=False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float32", "not a dtype with a shape"),
        ("float16[2]", "no such dtype"),
        ("int32[2,3]", "needs a limit"),
        ("float32[2]<3", "has no limit"),
        ("float32[2,0]", "must be at least 1"),
        ("int32[2]<0", "needs a limit"),
        ("int32[2]>3<4", "needs a limit"),
        ("int32[2]>3", "not a dtype with a shape"),
    ],
)
def test_a_mistake_in_an_input_is_named(text: str, expected: str) -> None:
    with pytest.raises(UserError, match=rf"inputs\.x={text[:3]}.*{expected}"):
        parse_input("x", text)


def test_inputs_are_drawn_as_described() -> None:
    inputs = {name: parse_input(name, text) for each in MODELS.values() for name, text in each.items()}
    inputs["mask"] = parse_input("mask", "bool[2, 3]")
    drawn = draw_inputs(inputs, 1)
    assert {name: array.shape for name, array in drawn.items()} == {name: each.shape for name, each in inputs.items()}
    assert drawn["tokens"].dtype == "int32"
    assert drawn["tokens"].max() < 11
    assert drawn["mask"].dtype == bool
    assert drawn["x"].dtype == "float64"


def test_a_process_that_ends_is_reported() -> None:
    with Side("torch_impl") as side:
        side.process.kill()
        with pytest.raises(UserError, match="the process of PyTorch ended with exit code -9"):
            side.receive()
    assert not side.process.is_alive()
