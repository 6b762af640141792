"""Mistakes in factories, inputs and map files are errors of one line."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from common.map import side as side_module
from common.map.factory import collect_plain_attributes
from common.map.input_specs import draw_inputs, parse_input_spec
from common.map.map_file import read_map
from common.map.pair_variables import pair_variables
from common.map.proof import map_weights
from common.map.side import Side
from tests.unit.common.conftest import Sides
from tests.unit.common.map.conftest import PairModels
from tests.unit.common.map.test_pairs import FEATURES, MODELS

pytestmark = pytest.mark.slow

NUMBERS = {"tokens": "int32[3,4]<9", "count": "float32[3,3]"}
ERRORS = {  # factories, inputs, what the error says
    "module": ("no_such_models:linear", "linear", FEATURES, "no module tests.unit.common.map.no_such_models"),
    "function": ("linaer", "linear", FEATURES, "torch_models has no function linaer"),
    "raised": ("fails", "linear", FEATURES, "torch_models:fails: raised KeyError: 'weights of 2019'"),
    "type": ("no_module", "linear", FEATURES, "returned list, not a torch.nn.Module"),
    "Keras's type": ("linear", "torch_models:linear", FEATURES, "returned Linear, not a keras.Model or keras.Layer"),
    "input": (
        "two_inputs",
        "two_inputs",
        NUMBERS,
        "model.torch: takes no input count, which the data has; it takes tokens, ",
    ),
    "Keras's input": (
        "plain",
        "two_inputs",
        NUMBERS,
        "model.torch: takes no input tokens, which the data has; it takes x",
    ),
    "forward": ("linear", "linear", {"x": "float32[4,5]"}, "its forward pass raised RuntimeError: mat1 and mat2"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_mistake_is_an_error_of_one_line(pair_models: PairModels, name: str) -> None:
    torch, keras, inputs, expected = ERRORS[name]
    with pytest.raises(UserError) as raised:
        pair_models(torch, keras, inputs)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_arguments_that_a_factory_does_not_take_are_named(pair_models: PairModels) -> None:
    with pytest.raises(UserError, match=r"linear: raised TypeError: .*unexpected keyword argument 'classes'"):
        pair_models("linear", "linear", FEATURES, classes=3)


def test_both_sides_go_on_after_an_error(pair_models: PairModels) -> None:
    with pytest.raises(UserError):
        pair_models("fails", "no_such_function", FEATURES)
    assert pair_models("linear", "linear", FEATURES, bias=False).proven


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dens/kernal: weight", "Keras's model has no such variable; did you mean"),
        ("KERNEL: weigth", "weigth: PyTorch's model has no such variable; did you mean weight?"),
        ("KERNEL: weight | turn 1 0", "turn 1 0: not a step"),
        ("KERNEL: weight | transpose 1", "correct it in model.map"),
        ("KERNEL: weight | reshape 4 6", "correct it in model.map"),
        ("KERNEL: weight | blocks 1 0 2 axis 5", "there is no axis 5; correct it in model.map"),
        ("KERNEL: weight[0:99]", "there are no such rows.*; correct it in model.map"),
        ("KERNEL: [weight]", "must have lines such as"),
        ("- KERNEL", "must have lines such as"),
        ("KERNEL: 'weight", "cannot be read"),
    ],
)
def test_a_mistake_in_a_map_file_is_named(pair_models: PairModels, line: str, expected: str, tmp_path: Path) -> None:
    models = pair_models("linear", "linear", FEATURES, bias=False)
    (pair,) = models.parameter_map.variable_pairs
    path = tmp_path / "map.yaml"
    path.write_text(line.replace("KERNEL", pair.keras))
    descriptions = models.torch_description, models.keras_description
    with pytest.raises(UserError, match=expected) as raised:
        map_weights(
            pair_variables(*descriptions, read_map(path, *descriptions)), models.initial_weights, descriptions[1]
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float32", "not a dtype with a shape"),
        ("float16[2]", "unknown dtype"),
        ("int32[2,3]", "needs a limit"),
        ("float32[2]<3", "takes no limit"),
        ("float32[2,0]", "must be at least 1"),
        ("int32[2]<0", "needs a limit"),
        ("int32[2]>3<4", "needs a limit"),
        ("int32[2]>3", "not a dtype with a shape"),
        ("float32[channels=3]", "needs an axis before it"),
        ("int32[2]<3000000000", "int32 cannot hold its values"),
        ("int32[2,3,prefix]<5", "prefix is for a mask of bools or of integers without limits"),
        ("float32[2,3,prefix]", "prefix is for a mask of bools or of integers without limits"),
    ],
)
def test_a_mistake_in_an_input_is_named(text: str, expected: str) -> None:
    with pytest.raises(UserError, match=rf"inputs\.x={text[:3]}.*{expected}"):
        parse_input_spec("x", text)


def test_inputs_are_drawn_as_described() -> None:
    inputs = {name: parse_input_spec(name, text) for specs in MODELS.values() for name, text in specs.items()}
    inputs["mask"] = parse_input_spec("mask", "bool[2, 3]")
    inputs["padding"] = parse_input_spec("padding", "bool[9,6,prefix]")
    inputs["integers"] = parse_input_spec("integers", "int32[9,6,prefix]")
    drawn = draw_inputs(inputs, 1)
    assert {name: array.shape for name, array in drawn.items()} == {name: spec.shape for name, spec in inputs.items()}
    assert drawn["tokens"].dtype == "int32"
    assert drawn["tokens"].max() < 11
    assert drawn["mask"].dtype == drawn["padding"].dtype == bool
    assert drawn["integers"].dtype == "int32"
    for mask in (drawn["padding"], drawn["integers"]):
        lengths = mask.sum(1)
        np.testing.assert_array_equal(mask, np.arange(6) < lengths[:, None])
        assert lengths.min() >= 1 and len(set(lengths)) > 1
    assert drawn["x"].dtype == "float64"


def test_an_input_whose_drawn_values_are_all_equal_is_noted(pair_models: PairModels) -> None:
    ones = pair_models("tied", "tied", {"tokens": "int32[3,5]>0<2"})
    assert ones.proof is not None and ones.proven
    assert ones.proof.notes[-1] == (
        "inputs.tokens: all values are 1, so the proof does not show what the models do with other values; for a mask, "
        "write int32[3,5,prefix]"
    )
    mask = pair_models("tied", "tied", {"tokens": "int32[3,5,prefix]"})
    assert mask.proof is not None and not [note for note in mask.proof.notes if "all values are" in note]


def test_a_process_that_ends_is_reported() -> None:
    with Side("torch_impl") as side:
        side.process.kill()
        side.process.wait()
        for call in (side.receive, lambda: side.send("weights")):
            with pytest.raises(
                UserError, match="of PyTorch ended with exit code -9; it was killed, possibly out of memory"
            ):
                call()


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    arguments: dict[str, object] = {"name_path": str(tmp_path / "name")}
    with Side("torch_impl") as side:
        with pytest.raises(UserError):
            side.call(
                "build",
                key="model.torch",
                factory=f"{__name__}:writes_a_temporary_file",
                arguments=arguments,
                inputs={},
                arrays={},
                seed=0,
            )
        temporary = Path((tmp_path / "name").read_text())
        assert temporary.exists()
        side.process.kill()
    assert not temporary.exists()


def test_a_process_whose_own_child_goes_on_is_reported(tmp_path: Path) -> None:
    arguments: dict[str, object] = {"pid_path": str(tmp_path / "pid")}
    with Side("torch_impl") as side, pytest.raises(UserError, match="ended with exit code 3; its output says why"):
        side.call(
            "build", key="model.torch", factory=f"{__name__}:forks", arguments=arguments, inputs={}, arrays={}, seed=0
        )
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # raises an error if the child has ended before


def test_the_interpreter_of_a_process_that_cannot_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Side("tf_impl", python="/bin/false") as side,
        pytest.raises(
            UserError, match=r"^the process of TensorFlow \(/bin/false\) ended; python=/bin/false: cannot import"
        ),
    ):
        side.call("build")
    (tmp_path / "torch.py").write_text("raise ImportError('no libtorch.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    expected = f"PyTorch: cannot be imported with {sys.executable}: ImportError: no libtorch.so"
    with Side("torch_impl") as side, pytest.raises(UserError, match=re.escape(expected)):
        side.call("build")


def test_a_process_with_a_broken_numpy_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('no libopenblas.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    expected = r"cannot import numpy \(ImportError: no libopenblas.so\); repair"
    with Side("tf_impl", python=sys.executable) as side, pytest.raises(UserError, match=expected):
        side.call("build")
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_warnings_about_layers_without_build_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    x = parse_input_spec("x", "float32[2,3]")
    build = {"key": "model.tf", "factory": f"{__name__}:keras_with_a_layer_that_is_not_called", "inputs": {"x": x}}
    with Side("tf_impl") as side:
        side.call("build", **build, arguments={}, arrays=draw_inputs({"x": x}, 0), seed=0)
        side.call("describe")
    assert "build()" not in capfd.readouterr().err


def test_an_import_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import signal; signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(side_module, "MAX_SECONDS", 0)
    monkeypatch.setattr(side_module, "POLL_SECONDS", 0)
    expected = f"PyTorch ({sys.executable}) has not imported its framework within 0 s"
    with pytest.raises(UserError, match=re.escape(expected)), Side("torch_impl", python=sys.executable) as side:
        side.call("build")


def test_a_process_ends_with_its_parent_and_leaves_no_files(tmp_path: Path) -> None:
    arguments = {
        "key": "model.torch",
        "factory": f"{__name__}:hangs",
        "arguments": {},
        "inputs": {},
        "arrays": {},
        "seed": 0,
    }
    script = (
        "import os, signal; from common.map.side import Side; "
        f"Side('torch_impl').send('build', **{arguments}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(  # waits for both
        [sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60, env=environment
    )
    assert done.returncode == -signal.SIGKILL
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_sent_is_an_error_of_one_line(sides: Sides) -> None:
    x, side = parse_input_spec("x", "float32[2,3,4]"), sides["torch"]
    factory, arrays = f"{__name__}:torch_attention", draw_inputs({"x": x}, 0)
    build = {"key": "model.torch", "factory": factory, "arguments": {"causal": True}, "inputs": {"x": x}}
    side.call("build", **build, arrays=arrays, seed=0)
    with pytest.raises(UserError, match=r"PyTorch: \w+: .*local") as raised:
        side.call("__getstate__")  # its model, which is of a local class
    assert "\n" not in str(raised.value)
    assert side.call("weights")


def test_only_plain_attributes_are_sent() -> None:
    number = IntEnum("number", {"one": 1}).one  # type: ignore[attr-defined]
    layer = SimpleNamespace(a=1, b=[2, (3, None)], c=np.float64(0.5), d="same", e=number, f=(1, object()), g=object())
    attributes = collect_plain_attributes(layer, {name: name.upper() for name in "abcdefgh"})
    assert attributes == {"A": 1, "B": (2, (3, None)), "C": 0.5, "D": "same"}
    assert type(attributes["C"]) is float


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_attention_is_not_one_that_is_not(pair_models: PairModels, causal: bool) -> None:
    inputs, torch = {"x": "float32[2,5,4]"}, "test_errors:torch_attention"
    assert pair_models(torch, "test_errors:keras_attention", inputs, causal=causal).proven
    assert not pair_models(torch, "test_errors:keras_other_attention", inputs, causal=causal).proven


def writes_a_temporary_file(name_path: str) -> None:
    Path(name_path).write_text(tempfile.mkstemp()[1])


def forks(pid_path: str) -> None:
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        time.sleep(600)
    Path(pid_path).write_text(str(child))
    os._exit(3)


def hangs() -> None:
    time.sleep(600)


def torch_attention(causal: bool) -> Any:
    import torch

    class Attention(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, None, 0.5, causal)

    return Attention(4, 4)


def keras_attention(causal: bool) -> Any:
    import keras

    class Attention(keras.layers.Dense):
        def call(self, x: Any, training: bool | None = None) -> Any:
            x = super().call(x)[:, :, None]
            return keras.ops.dot_product_attention(x, x, x, is_causal=causal)[:, :, 0]

    return Attention(4)


def keras_other_attention(causal: bool) -> Any:
    return keras_attention(not causal)


def keras_with_a_layer_that_is_not_called() -> Any:
    import keras

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.unused = keras.layers.Dense(2), keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.head(x)

    return Model()
