"""Tests of the pairs of variables of two recorded models."""

from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.recorded_model import RecordedModel
from common.diagnose.recorded.variable_pairs import ModelPairs, pair_recorded_models
from common.recording.record_format import ModelFacts

Layers = list[tuple[str, str, dict[str, list[int]], str]]  # kind, path, shapes by role, source


def build_model(*, is_torch: bool, layers: Layers, uncalled: dict[str, list[int]] | None = None) -> RecordedModel:
    separator = "." if is_torch else "/"
    variables = {f"{path}{separator}{role}": shape for _, path, shapes, _ in layers for role, shape in shapes.items()}
    facts: list[dict[str, Any]] = [
        {
            "kind": kind, "path": path, "attributes": {}, "unflattened_shape": None, "composite": None,
            "variables": {role: f"{path}{separator}{role}" for role in shapes}, "training": True,
            **({"sources": [source]} if source else {}),
        }
        for kind, path, shapes, source in layers
    ]  # fmt: skip
    described: Any = {
        "name": "Model",
        "layers": facts,
        "variables": {
            name: {"shape": shape, "dtype": "float32", "trainable": True}
            for name, shape in {**variables, **(uncalled or {})}.items()
        },
        "tied": [],
    }
    model: ModelFacts = described
    return RecordedModel(is_torch, model)


def _pair(torch: RecordedModel, keras: RecordedModel) -> ModelPairs:
    return pair_recorded_models(torch, keras, None)


@pytest.mark.parametrize(("shape", "keras_shape"), [([16, 8], [8, 16]), ([16, 8], [16, 8])])
def test_variable_of_a_layer_that_is_not_called_is_paired(shape: list[int], keras_shape: list[int]) -> None:
    """The script reads the weight of an embedding."""
    torch = build_model(is_torch=True, layers=[("Codes", "codes", {}, "")], uncalled={"codes.table.weight": shape})
    keras = build_model(is_torch=False, layers=[("Codes", "codes", {"table": keras_shape}, "")])
    pairs = _pair(torch, keras)
    assert [(match.names_a, match.names_b) for match in pairs.variables] == [
        (("codes.table.weight",), ("codes/table",))
    ]
    assert pairs.unpaired_a == pairs.unpaired_b == []


def _build_branches(*, is_torch: bool, order: str, has_sources: bool) -> RecordedModel:
    """Return a model of three convolutions, and of norms that are called in another order."""
    kinds = ("Conv2d", "BatchNorm2d") if is_torch else ("Conv2D", "BatchNormalization")
    roles = ("weight", "weight") if is_torch else ("kernel", "gamma")
    moving = "running_mean" if is_torch else "moving_mean"
    layers: Layers = []
    for number in "123":
        size = int(number)
        shape = [4, 2, size, size] if is_torch else [size, size, 2, 4]
        layers.append((kinds[0], f"conv{number}", {roles[0]: shape}, ""))
    for number in order:
        source = f"conv{number}" if has_sources else ""
        path = f"norm{number}" if is_torch else "abc"[int(number) - 1]  # names do not show the pairs
        layers.append((kinds[1], path, {roles[1]: [4], moving: [4]}, source))
    return build_model(is_torch=is_torch, layers=layers)


@pytest.mark.parametrize("has_sources", [True, False])
def test_norms_of_branches_are_paired_by_the_layers_before_them(has_sources: bool) -> None:
    torch = _build_branches(is_torch=True, order="123", has_sources=has_sources)
    keras = _build_branches(is_torch=False, order="132", has_sources=has_sources)
    paths = {layer.path_a: layer.path_b for layer in _pair(torch, keras).layers if layer.path_a.startswith("norm")}
    assert paths == dict(zip(("norm1", "norm2", "norm3"), "abc" if has_sources else "acb", strict=True))


@pytest.mark.parametrize(
    ("activation", "goes_backwards", "differs"), [("relu", False, True), ("tanh", True, True), ("tanh", False, False)]
)
def test_activation_and_direction_of_a_recurrent_layer_are_settings(
    activation: str, goes_backwards: bool, differs: bool
) -> None:
    shapes = {"weight_ih_l0": [12, 4], "weight_hh_l0": [12, 3], "bias_ih_l0": [12], "bias_hh_l0": [12]}
    torch = build_model(is_torch=True, layers=[("LSTM", "rnn", shapes, "")])
    keras = build_model(
        is_torch=False,
        layers=[("LSTM", "rnn", {"kernel": [4, 12], "recurrent_kernel": [3, 12], "bias": [12]}, "")],
    )
    keras.facts["layers"][0]["attributes"] = {
        "activation": activation, "recurrent_activation": "sigmoid", "go_backwards": goes_backwards
    }  # fmt: skip
    (layer,) = _pair(torch, keras).layers
    assert layer.settings_a == {"activation": "tanh", "recurrent_activation": "sigmoid", "go_backwards": False}
    assert (layer.settings_a != layer.settings_b) == differs


@pytest.mark.parametrize(
    ("activations", "expected"),
    [("tanh tanh", {"activation": "tanh"}), ("relu relu", {"activation": "relu"}), ("relu tanh", {})],
)
def test_a_recurrent_layer_of_two_directions_has_the_settings_that_both_share(
    activations: str, expected: dict[str, str]
) -> None:
    """A layer of PyTorch has two directions, and one of Keras wraps a layer for each of them."""
    sizes = {"weight_ih": [12, 4], "weight_hh": [12, 3], "bias_ih": [12], "bias_hh": [12]}
    shapes = {f"{role}_l0{end}": shape for end in ("", "_reverse") for role, shape in sizes.items()}
    torch = build_model(is_torch=True, layers=[("LSTM", "rnn", shapes, "")])
    variables = {"kernel": [4, 12], "recurrent_kernel": [3, 12], "bias": [12]}
    layers: Layers = [("LSTM", f"bi/{name}", variables, "") for name in ("forward_lstm", "backward_lstm")]
    keras = build_model(is_torch=False, layers=[("Bidirectional", "bi", {}, ""), *layers])
    for layer, activation in zip(keras.facts["layers"][1:], activations.split(), strict=True):
        layer["composite"] = "bi"
        is_backward = "backward" in layer["path"]
        layer["attributes"] = {"activation": activation, "go_backwards": is_backward, "use_bias": True}
    (pair,) = _pair(torch, keras).layers
    assert (pair.path_a, pair.path_b) == ("rnn", "bi")
    assert pair.settings_a["activation"] == "tanh"
    assert pair.settings_b == expected


def test_another_layer_of_the_size_of_fused_projections_is_not_split() -> None:
    torch = build_model(
        is_torch=True,
        layers=[
            ("Linear", "block.qkv", {"weight": [48, 16], "bias": [48]}, ""),
            ("Linear", "block.proj", {"weight": [16, 16], "bias": [16]}, ""),
            ("Linear", "head", {"weight": [48, 16], "bias": [48]}, ""),
        ],
    )
    names = ("query", "key", "value", "output")
    projections: Layers = [("Dense", name, {"kernel": [16, 16], "bias": [16]}, "") for name in names]
    keras = build_model(
        is_torch=False, layers=[*projections, ("Dense", "logits", {"kernel": [16, 48], "bias": [48]}, "")]
    )
    pairs = _pair(torch, keras)
    assert pairs.unpaired_a == pairs.unpaired_b == []
    matches = {match.names_b[0]: match.names_a for match in pairs.variables}
    assert matches["logits/kernel"] == ("head.weight",)
    assert all(matches[f"{name}/kernel"] == ("block.qkv.weight",) for name in names[:3])


@pytest.mark.parametrize(("name", "is_paired"), [("std", False), ("x_std", False), ("var", True)])
def test_a_standard_deviation_gets_no_variance(name: str, is_paired: bool) -> None:
    torch = build_model(is_torch=True, layers=[("Scale", "scale", {"mean": [3], name: [3]}, "")])
    keras = build_model(is_torch=False, layers=[("Normalization", "scale", {"mean": [3], "variance": [3]}, "")])
    pairs = _pair(torch, keras)
    names = {match.names_a: match.names_b for match in pairs.variables}
    assert names.get((f"scale.{name}",)) == (("scale/variance",) if is_paired else None)


def test_norms_of_shortcuts_follow_other_convolutions_than_those_of_the_main_branch() -> None:
    """Keras calls the convolution of the shortcut first, and neither names nor the layers after them show the pairs."""
    roles: dict[bool, tuple[str, ...]] = {
        True: ("Conv2d", "BatchNorm2d", "weight", "weight", "running_mean"),
        False: ("Conv2D", "BatchNormalization", "kernel", "gamma", "moving_mean"),
    }
    models = []
    for is_torch, order in ((True, ("main", "norm1", "shortcut", "norm2")), (False, ("shortcut", "main", "b", "a"))):
        conv, norm, weight, scale, mean = roles[is_torch]
        shapes = {"main": [4, 4, 3, 3], "shortcut": [4, 2, 1, 1]}
        sources = {"norm1": "main", "norm2": "shortcut", "a": "main", "b": "shortcut"}
        layers: Layers = [
            (norm, name, {scale: [4], mean: [4]}, sources[name])
            if name in sources
            else (conv, name, {weight: shapes[name] if is_torch else shapes[name][::-1]}, "")
            for name in order
        ]
        head = (
            ("Linear", "head", {"weight": [3, 4]}, "norm1") if is_torch else ("Dense", "head", {"kernel": [4, 3]}, "")
        )
        models.append(build_model(is_torch=is_torch, layers=[*layers, head]))
    paths = {layer.path_a: layer.path_b for layer in _pair(*models).layers if layer.path_a.startswith("norm")}
    assert paths == {"norm1": "a", "norm2": "b"}


def _build_linear(
    *, is_torch: bool, sources: dict[str, str], attributes: dict[str, str] | None = None
) -> RecordedModel:
    """Return a model of norms, whose sizes differ, and of equal linear layers in the order of `sources`."""
    norm, scale, mean = ("BatchNorm1d", "weight", "running_mean") if is_torch else (
        "BatchNormalization", "gamma", "moving_mean"
    )  # fmt: skip
    layers: Layers = [(norm, f"norm{size}", {scale: [size], mean: [size]}, "") for size in (4, 5)]
    kind, role = ("Linear", "weight") if is_torch else ("Dense", "kernel")
    model = build_model(
        is_torch=is_torch, layers=[*layers, *((kind, path, {role: [6, 6]}, source) for path, source in sources.items())]
    )
    for layer in model.facts["layers"]:
        if attribute := (attributes or {}).get(layer["path"]):
            layer["attribute"] = attribute
    return model


def test_layers_in_another_order_are_paired_by_sources_that_only_some_have() -> None:
    """PyTorch's attention is one layer, so that those of its projections have no known source."""
    torch = _build_linear(is_torch=True, sources={"inner": "", "quantizer": "norm4", "final": "norm5"})
    keras = _build_linear(is_torch=False, sources={"a": "norm9", "b": "norm5", "c": "norm4"})
    paths = {layer.path_a: layer.path_b for layer in _pair(torch, keras).layers}
    assert [paths[name] for name in ("inner", "quantizer", "final")] == ["a", "c", "b"]


@pytest.mark.parametrize("has_attributes", [True, False])
def test_heads_on_one_layer_are_paired_by_the_attributes_that_hold_them(has_attributes: bool) -> None:
    torch = _build_linear(is_torch=True, sources={"to_sigma": "norm5", "to_mu": "norm5"})
    attributes = {"dense": "mu", "dense_1": "sigma"} if has_attributes else {}
    keras = _build_linear(is_torch=False, sources={"dense": "norm5", "dense_1": "norm5"}, attributes=attributes)
    paths = {layer.path_a: layer.path_b for layer in _pair(torch, keras).layers}
    assert paths["to_mu"] == ("dense" if has_attributes else "dense_1")


def test_the_only_source_of_an_older_record_is_read() -> None:
    models = [_build_linear(is_torch=x, sources={"a": "norm4", "b": "norm5"}) for x in (True, False)]
    for model in models:
        for facts in model.facts["layers"]:
            if (sources := facts.pop("sources", None)) is not None:
                facts["source"] = sources[0]
    models[1].facts["layers"][2:] = models[1].facts["layers"][:1:-1]
    paths = {layer.path_a: layer.path_b for layer in _pair(*models).layers}
    assert (paths["a"], paths["b"]) == ("a", "b")


def test_scales_are_paired_after_the_norms_that_have_their_sizes() -> None:
    """PyTorch's norm is a class of the script, whose two vectors have the sizes of the scale [1, 4, 1, 1]."""
    torch = build_model(
        is_torch=True,
        layers=[
            ("Norm2d", "norm", {"weight": [4], "bias": [4]}, ""),
            ("Block", "block", {"beta": [1, 4, 1, 1]}, "norm"),
            ("Scale", "scale", {"scale": [1]}, "norm"),
        ],
    )
    keras = build_model(
        is_torch=False,
        layers=[
            ("LayerNormalization", "norm", {"gamma": [4], "beta": [4]}, ""),
            ("Block", "block", {"beta": [1, 1, 1, 4]}, "norm"),
            ("Scale", "scale", {"scale": []}, "norm"),
        ],
    )
    pairs = {match.names_a: match.names_b for match in _pair(torch, keras).variables}
    assert pairs == {
        ("norm.weight",): ("norm/gamma",),
        ("norm.bias",): ("norm/beta",),
        ("block.beta",): ("block/beta",),
        ("scale.scale",): ("scale/scale",),
    }


def test_a_matrix_of_a_class_of_the_script_may_have_the_layout_of_keras() -> None:
    torch = build_model(is_torch=True, layers=[("script.Linear", "linear", {"weight": [3, 1]}, "")])
    keras = build_model(is_torch=False, layers=[("Dense", "dense", {"kernel": [3, 1]}, "")])
    (match,) = _pair(torch, keras).variables
    kernel = np.arange(3.0)[:, None]
    a, b = match.read_a({"linear.weight": kernel}), match.read_b({"dense/kernel": kernel})
    assert a is not None
    assert b is not None
    assert np.array_equal(a, b)


def test_matrices_that_a_subclass_adds_are_paired_with_linear_layers() -> None:
    """LoRA as loralib and as keras.io write it."""
    added = {"weight": [6, 6], "lora_A": [2, 6], "lora_B": [6, 2]}
    torch = build_model(is_torch=True, layers=[("Linear", "query", added, "")])
    keras = build_model(
        is_torch=False,
        layers=[
            ("Dense", "query/query", {"kernel": [6, 6]}, ""),
            ("Dense", "query/lora_A", {"kernel": [6, 2]}, ""),
            ("Dense", "query/lora_B", {"kernel": [2, 6]}, "query/lora_A"),
        ],
    )
    pairs = {match.names_a: match.names_b for match in _pair(torch, keras).variables}
    assert pairs == {
        ("query.weight",): ("query/query/kernel",),
        ("query.lora_A",): ("query/lora_A/kernel",),
        ("query.lora_B",): ("query/lora_B/kernel",),
    }
