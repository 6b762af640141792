"""Transformations, map files and the table."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from common.map.map_file import write_map
from common.map.map_table import format_map_table
from common.map.transformation import parse_transformation
from common.map.unmatched import describe_unmatched
from tests.unit.common.map.conftest import PairModels
from tests.unit.common.map.test_pairs import FEATURES, IMAGES, MODELS, TOKENS

TEXTS = [
    "a",
    "a | transpose 1 0",
    "a[2:4]",
    "a[0:2] | transpose 1 0 | reshape 3 2 1",
    "a, b | blocks 1 0 axis 1 | transpose 2 0 1",
    "a | blocks 1 3 0 2 axis 0 | reshape 12",
    "a | transpose 1 0 | rows 1 3",
    "a & b axis 0",
    "a[0:2] & b axis 0 | transpose 1 0",
    "a & b axis 1 | blocks 1 3 0 2 axis 0 | transpose 1 0",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_transformation_is_undone(text: str) -> None:
    transformation = parse_transformation(text)
    assert str(transformation) == text
    arrays = {name: np.random.default_rng(0).random((4, 3)) for name in "ab"}
    keras_array = transformation.to_keras(arrays)
    back = {name: np.zeros((4, 3)) for name in "ab"}
    transformation.to_torch(keras_array, back)
    np.testing.assert_array_equal(transformation.to_keras(back), keras_array)
    assert np.count_nonzero(np.stack(list(back.values()))) == keras_array.size


def test_a_sum_goes_back_into_its_first_term() -> None:
    transformation = parse_transformation("a + b")
    back = {"a": np.ones(2), "b": np.ones(2)}
    transformation.to_torch(np.array([3.0, 4.0]), back)
    np.testing.assert_array_equal(back["a"], [3, 4])
    np.testing.assert_array_equal(back["b"], [0, 0])
    np.testing.assert_array_equal(transformation.gradient_to_keras({"a": np.full(2, 7.0), "b": np.ones(2)}), [7, 7])


@pytest.mark.parametrize("text", ["a | blocks 1 0 2 axis 5", "a[2:5]", "a[2:2]", "s[0:1]", "a | rows 1 5"])
def test_what_does_not_fit_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"there (is|are) no"):
        parse_transformation(text).to_keras({"a": np.zeros((3, 3)), "s": np.zeros(())})


def test_a_scalar_is_mapped() -> None:
    back = {"a": np.zeros(())}
    parse_transformation("a").to_torch(parse_transformation("a").to_keras({"a": np.array(3.0)}), back)
    assert back["a"] == 3


@pytest.mark.parametrize("text", ["", "a b", "a[1]", "a | transpose", "a | blocks x"])
def test_what_is_no_transformation_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="not "):
        parse_transformation(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flattened", "bidirectional_gru", "self_attention", "stacked_lstm"])
def test_what_was_written_is_read(pair_models: PairModels, name: str, tmp_path: Path) -> None:
    models = pair_models(name, name, MODELS[name])
    path = tmp_path / "map.yaml"
    write_map(path, models.parameter_map, models.torch_description, models.keras_description)
    again = pair_models(name, name, MODELS[name], path)
    assert again.proven
    assert {pair.keras: pair for pair in again.parameter_map.variable_pairs} == {
        pair.keras: pair for pair in models.parameter_map.variable_pairs
    }
    with pytest.raises(UserError, match="already exists"):
        write_map(path, models.parameter_map, models.torch_description, models.keras_description)


@pytest.mark.slow
def test_the_table_has_a_line_for_each_variable(pair_models: PairModels) -> None:
    models = pair_models("flattened", "flattened", IMAGES)
    lines = format_map_table(models.parameter_map, models.torch_description, models.keras_description).splitlines()
    assert lines[0].split() == ["PyTorch", "shape", "Keras", "shape", "transformation"]
    assert len(lines) == 2 + 8
    assert " ".join(lines[2].split()) == "0.weight 4x3x3x3 sequential/conv2d/kernel 3x3x3x4 transpose 2 3 1 0"
    assert lines[3].endswith("same")


@pytest.mark.slow
def test_what_is_left_has_its_nearest_candidates(pair_models: PairModels, tmp_path: Path) -> None:
    models = pair_models("square", "wrong_models:three_kernels", FEATURES)
    lines = describe_unmatched(models.parameter_map, models.torch_description, models.keras_description)
    assert "not matched: PyTorch's 0.weight [6, 6]; nearest: " in lines[0]
    assert "first [6, 6], sequential/three_kernels/second [6, 6]" in lines[0]
    path = tmp_path / "map.yaml"
    write_map(path, models.parameter_map, models.torch_description, models.keras_description)
    assert f"# {lines[0]}" in path.read_text()


@pytest.mark.slow
def test_what_may_be_tied_on_the_other_side_is_said(pair_models: PairModels) -> None:
    models = pair_models("tied_without_bias", "wrong_models:untied", TOKENS)
    (line,) = describe_unmatched(models.parameter_map, models.torch_description, models.keras_description)
    assert line == (
        "not matched: Keras's untied/dense/kernel [6, 11]; no similar variable is left; if it is tied to "
        "tokens.weight in PyTorch, tie it in Keras too"
    )


@pytest.mark.slow
def test_a_name_alone_settles_a_pair_and_its_bias(pair_models: PairModels, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("sequential/dense_2/kernel: 0.weight")
    models = pair_models("square", "wrong_models:two_of_three", FEATURES, path)
    texts = {pair.keras: str(pair.transformation) for pair in models.parameter_map.variable_pairs}
    assert texts["sequential/dense_2/kernel"] == "0.weight | transpose 1 0"
    assert texts["sequential/dense_2/bias"] == "0.bias"
