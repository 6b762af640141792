"""Weights are converted between models that are proven to be the same, in both directions."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from common.errors import UserError
from common.map.input_specs import draw_inputs
from common.map.pair_models import PairedModels, PairingRequest
from common.map.side import Side
from common.models.conversion import convert_weights
from common.models.conversion_paths import ConversionPaths
from tests.unit.common.conftest import Sides
from tests.unit.common.map.conftest import PairModels, build_request
from tests.unit.common.map.test_pairs import MODELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stored_sides() -> Iterator[Sides]:
    with Side("torch_impl", "stored_model") as torch_side, Side("tf_impl", "stored_model") as keras_side:
        yield {"torch": torch_side, "tf": keras_side}


def save_drawn(side: Side, request: PairingRequest, path: Path) -> dict[str, np.ndarray]:
    """Save PyTorch's model with random weights, and return them."""
    side.call(
        "build",
        key="model.torch",
        factory=request.torch,
        arguments=request.arguments,
        inputs=request.inputs,
        arrays=draw_inputs(request.inputs, 0),
        seed=0,
    )
    stream = np.random.default_rng(7)
    weights = {
        name: stream.uniform(0.1, 1, array.shape).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in side.call("weights").items()
    }
    side.call("save", location="", path=path, weights=weights)
    return weights


def convert_both_ways(
    models: PairedModels, request: PairingRequest, sides: Sides, directory: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[str], list[str]]:
    """Return PyTorch's weights before and after, and the notes of both conversions."""
    files = [directory / name for name in ("a.safetensors", "a.weights.h5", "b.safetensors")]
    before = save_drawn(sides["torch"], request, files[0])
    conversions = [
        convert_weights(ConversionPaths(source, target, to_keras), models, request, sides)
        for source, target, to_keras in ((files[0], files[1], True), (files[1], files[2], False))
    ]
    assert sorted(directory.iterdir()) == sorted(files)  # nothing else is left
    for conversion in conversions:
        assert conversion.outputs.own_types < 1e-5
        assert conversion.outputs.float64 < 1e-13
    after = sides["torch"].call("load", location="", path=files[2]).arrays
    return before, after, conversions[0].notes, conversions[1].notes


@pytest.mark.parametrize("name", ["tied", "batch_norm"])
def test_weights_survive_both_ways(pair_models: PairModels, stored_sides: Sides, tmp_path: Path, name: str) -> None:
    models, request = pair_models(name, name, MODELS[name]), build_request(name, name, MODELS[name])
    before, after, there, back = convert_both_ways(models, request, stored_sides, tmp_path)
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array, err_msg=key)
    counters = ["1.num_batches_tracked: left out; Keras has no such counters"], ["1.num_batches_tracked: stays 0"]
    assert (there, back) == (counters if name == "batch_norm" else ([], []))


def test_sharded_files_are_converted(pair_models: PairModels, stored_sides: Sides, tmp_path: Path) -> None:
    """Hugging Face's index of shards becomes Keras's, and that one file."""
    models, request = pair_models("tied", "tied", MODELS["tied"]), build_request("tied", "tied", MODELS["tied"])
    whole = tmp_path / "whole.safetensors"
    save_drawn(stored_sides["torch"], request, whole)
    tensors = load_file(whole)
    places = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, place in places.items():
        save_file({name: tensors[name]}, tmp_path / place)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    keras_index, back = tmp_path / "a.weights.json", tmp_path / "b.safetensors"
    for paths in (ConversionPaths(index, keras_index, True), ConversionPaths(keras_index, back, False)):
        assert convert_weights(paths, models, request, stored_sides).outputs.float64 < 1e-13
    converted = load_file(back)
    assert len(places) > 1
    assert converted.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(converted[name], array, err_msg=name)


def test_two_biases_become_one(pair_models: PairModels, stored_sides: Sides, tmp_path: Path) -> None:
    models, request = pair_models("lstm", "lstm", MODELS["lstm"]), build_request("lstm", "lstm", MODELS["lstm"])
    before, after, there, back = convert_both_ways(models, request, stored_sides, tmp_path)
    np.testing.assert_array_equal(after["layer.weight_ih_l0"], before["layer.weight_ih_l0"])
    np.testing.assert_array_equal(after["layer.bias_ih_l0"], before["layer.bias_ih_l0"] + before["layer.bias_hh_l0"])
    assert not after["layer.bias_hh_l0"].any()
    assert there == ["layer.bias_ih_l0 + layer.bias_hh_l0: one bias in Keras, the sum"]
    assert back == ["layer.bias_hh_l0: zero, because Keras's bias is the sum of two, and the first one gets it"]


@pytest.mark.parametrize(("name", "other"), [("gelu", "gelu"), ("lstm", "nearly_lstm")])  # LSTM's biases are rounded
def test_models_that_differ_with_these_weights_write_nothing(
    pair_models: PairModels, stored_sides: Sides, tmp_path: Path, name: str, other: str
) -> None:
    models = pair_models(name, name, MODELS[name])
    request = build_request(name, f"wrong_models:{other}", MODELS[name])
    save_drawn(stored_sides["torch"], request, tmp_path / "a.safetensors")
    paths = ConversionPaths(tmp_path / "a.safetensors", tmp_path / "a.weights.h5", to_keras=True)
    with pytest.raises(UserError, match=r"a.weights.h5: not written, because .* differ by .* in float64"):
        convert_weights(paths, models, request, stored_sides)
    assert list(tmp_path.iterdir()) == [paths.source]


def test_keras_models_of_both_sides_are_not_converted(pair_models: PairModels, stored_sides: Sides) -> None:
    models = pair_models("linear", "linear", MODELS["linear"])
    models = replace(models, torch_description=replace(models.torch_description, is_keras=True))
    request = build_request("linear", "linear", MODELS["linear"])
    with pytest.raises(UserError, match="both models are Keras's"):
        convert_weights(ConversionPaths(Path("a.pt"), Path("a.weights.h5"), True), models, request, stored_sides)
