"""Wrong models and wrong maps are refused, and the error names the layer."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from common.map.__main__ import print_proof
from common.map.array_differences import relative_difference
from tests.unit.common.map.conftest import PairModels
from tests.unit.common.map.test_pairs import FEATURES, IMAGES, SERIES, STEPS

pytestmark = pytest.mark.slow

SMALL = {"x": "float32[2,6,6,channels=3]"}
WRONG_MODELS = {  # PyTorch's factory, Keras's in wrong_models, inputs, what the error says
    "epsilon": ("layer_norm", "layer_norm", FEATURES, "is 1 (PyTorch) and sequential/layer_normalization (Keras)"),
    "gelu": (
        "gelu",
        "gelu",
        FEATURES,
        "tanh approximation of GELU after 0 (PyTorch) and sequential/dense (Keras), before that layer",
    ),
    "another activation": (
        "conv1d",
        "conv1d",
        SERIES,
        "PyTorch computes no activation, Keras ReLU after model (PyTorch) and sequential/conv1d (Keras)",
    ),
    "pooling": ("conv2d", "conv2d", IMAGES, "look after 0 (PyTorch) and sequential/conv2d (Keras), before that layer"),
    "padding": ("strided", "strided", SMALL, "is model (PyTorch) and model (Keras), by"),
    "momentum": ("batch_norm", "batch_norm", IMAGES, "momentum 0.1 in PyTorch is 0.9 in Keras, which has 0.99"),
    "frozen": ("square", "frozen", FEATURES, "0.weight (PyTorch) and sequential/dense/kernel (Keras): trained in"),
    "gradient": ("square", "stopped", FEATURES, "nearest to the output: 0.bias (PyTorch)"),
    "gate": ("lstm", "lstm", STEPS, "is layer.l0 (PyTorch) and model (Keras)"),
    "transposed output": ("scores", "turned_scores", STEPS, "in evaluation mode the outputs differ"),
    "integers": ("classes", "least_class", FEATURES, "in evaluation mode the outputs differ by inf"),
    "one mode": ("two_modes", "one_mode", FEATURES, "in training mode PyTorch's model returns output[0], output[1]"),
    "not frozen": ("all_frozen", "one_mode", FEATURES, "trained in Keras and not in PyTorch"),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_wrong_model_is_refused(pair_models: PairModels, name: str) -> None:
    torch, keras, inputs, expected = WRONG_MODELS[name]
    models = pair_models(torch, f"wrong_models:{keras}", inputs)
    assert models.proof is not None
    assert expected in "\n".join(models.proof.errors)


@pytest.mark.parametrize("value", [-1e9, -np.inf])
def test_masked_outputs_hide_no_difference(pair_models: PairModels, value: float) -> None:
    assert pair_models("masked", "masked", FEATURES, value=value).proven
    models = pair_models("masked", "wrong_models:masked", FEATURES, value=value)
    assert models.proof is not None
    assert "in evaluation mode the outputs differ by" in models.proof.errors[0]


def test_a_layout_that_cannot_be_told_is_an_error(pair_models: PairModels) -> None:
    with pytest.raises(UserError, match="the axes of the output have equal sizes"):
        pair_models("depthwise", "depthwise", {"x": "float32[2,8,8,channels=3]"})


@pytest.mark.parametrize("reassigned", [False, True])
def test_state_of_an_own_class_is_compared(pair_models: PairModels, reassigned: bool) -> None:
    assert pair_models("centered", "wrong_models:centered", FEATURES, reassigned=reassigned).proven
    models = pair_models("centered", "wrong_models:slowly_centered", FEATURES, reassigned=reassigned)
    assert models.proof is not None
    assert "in training mode center (PyTorch) and centered/center (Keras): differ by" in models.proof.errors[0]


def test_state_needs_a_counterpart(pair_models: PairModels) -> None:
    models = pair_models("centered", "all_frozen", FEATURES)
    assert models.proof is None
    assert models.parameter_map.unmatched_torch == ["center"]


def test_what_training_refuses_is_noted(pair_models: PairModels, capsys: pytest.CaptureFixture[str]) -> None:
    print_proof(pair_models("square", "wrong_models:penalized", FEATURES))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("note: Keras's model cannot be trained: variable sequential/dense/kernel has a regular")
    assert lines[-1] == "proven: both models compute the same"


def test_a_step_on_an_axis_that_is_none_is_an_error(pair_models: PairModels, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("sequential/dense/kernel: 0.weight | blocks 1 0 axis 5")
    with pytest.raises(UserError, match=r"sequential/dense/kernel: 0.weight"):
        pair_models("square", "square", FEATURES, path)


def test_relative_differences() -> None:
    assert relative_difference(np.array([1, np.inf]), np.array([1, np.inf])) == 0
    assert relative_difference(np.array([1, np.inf]), np.array([1, -np.inf])) == np.inf
    assert relative_difference(np.array([np.nan]), np.array([np.nan])) == np.inf
    assert relative_difference(np.array([1, np.nan]), np.array([1, np.nan]), equal_nan=True) == 0
    assert relative_difference(np.array([1, np.nan]), np.array([np.nan, 1]), equal_nan=True) == np.inf
    assert relative_difference(np.array([1, 2, -1e9]), np.array([1, 2.1, -1e9])) > 0.01
    assert relative_difference(np.array([1, 2, -1e9]), np.array([1, 2, -1.1e9])) > 0.01
    assert relative_difference(np.array([1, 2, 1e-17]), np.array([1, 2, 0])) < 1e-10
    assert relative_difference(np.zeros(0), np.zeros(0)) == relative_difference(np.zeros(2), np.zeros(2)) == 0


def test_the_settings_that_explain_a_difference_are_named(pair_models: PairModels) -> None:
    for name, inputs, expected in (
        ("layer_norm", FEATURES, "epsilon is 1e-05 in PyTorch and 0.001 in Keras"),
        ("strided", SMALL, "Keras pads more at the end"),
        ("enlarged", SMALL, "Cropping with PyTorch's padding at the start and padding - output_padding at the end"),
    ):
        models = pair_models(name, f"wrong_models:{name}", inputs)
        assert models.proof is not None
        assert expected in models.proof.errors[0]


def test_a_row_of_padding_is_named(pair_models: PairModels) -> None:
    models = pair_models("padded_embedding", "embedding", {"tokens": "int32[8,5]<3"})
    assert models.proof is not None
    assert "PyTorch's has padding_idx=0, a row that gets no gradient there" in models.proof.errors[0]
    assert pair_models("padded_embedding", "embedding", {"tokens": "int32[8,5]>0<3"}).proven


def test_swapped_layers_of_a_map_file_are_refused(pair_models: PairModels, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("sequential/dense/kernel: 2.weight\nsequential/dense_1/kernel: 0.weight")
    models = pair_models("square", "square", FEATURES, path)
    assert models.proof is not None
    assert "is 0 (PyTorch) and sequential/dense_1 (Keras)" in models.proof.errors[0]


@pytest.mark.parametrize(
    ("torch", "keras", "inputs", "torch_names", "keras_names"),
    [
        (
            "no_statistics",
            "wrong_models:batch_norm",
            IMAGES,
            [],
            ["sequential/batch_normalization/moving_mean", "sequential/batch_normalization/moving_variance"],
        ),
        ("gru", "wrong_models:gru", STEPS, ["layer.weight_ih_l0", "layer.weight_hh_l0"], ["gru/gru_cell/kernel"]),
        ("square", "wrong_models:two_of_three", FEATURES, [], ["sequential/dense_2/kernel", "sequential/dense_2/bias"]),
    ],
)
def test_what_has_no_counterpart_is_listed(
    pair_models: PairModels,
    torch: str,
    keras: str,
    inputs: dict[str, str],
    torch_names: list[str],
    keras_names: list[str],
) -> None:
    models = pair_models(torch, keras, inputs)
    assert models.proof is None
    assert set(torch_names) <= set(models.parameter_map.unmatched_torch)
    assert set(keras_names) <= set(models.parameter_map.unmatched_keras)
    assert bool(torch_names) == bool(models.parameter_map.unmatched_torch)
