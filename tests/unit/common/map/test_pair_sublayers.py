"""Pairs of single variables of classes that neither framework has."""

from dataclasses import replace

from common.map.layer_roles import LayerRoles
from common.map.own_recurrences import align_own_recurrences
from common.map.pair_single_variables import pair_single_variables
from common.map.pair_sublayers import pair_by_signature
from common.map.sublayers import KerasTarget, Sublayer, TorchSources
from common.map.transformation import SourceParameter


def make_torch(path: str, role: str) -> Sublayer:
    return Sublayer("parameter", path, (6,), {role: TorchSources(())})


def make_keras(path: str, role: str) -> Sublayer:
    return Sublayer("parameter", path, (6,), {role: KerasTarget(role)})


def pair(torch: list[Sublayer], keras: list[Sublayer]) -> list[tuple[str, str]]:
    """Return the pairs as a path and a role of each model."""
    layer_pairs = pair_by_signature(torch, keras, LayerRoles(torch, []), LayerRoles(keras, []))
    return [(describe(layer_pair.torch), describe(layer_pair.keras)) for layer_pair in layer_pairs]


def describe(sublayer: Sublayer) -> str:
    (role,) = sublayer.variables
    return f"{sublayer.path}.{role}"


def test_words_of_the_paths_decide_among_variables_of_one_role() -> None:
    torch = [make_torch(path, role) for path in ("left", "right") for role in ("weight", "bias")]
    keras = [make_keras(path, role) for path in ("right", "left") for role in ("weight", "bias")]
    pairs = pair(torch, keras)
    assert len(pairs) == 4
    assert all(torch == keras for torch, keras in pairs)


def test_the_order_decides_if_the_models_have_other_roles() -> None:
    torch = [make_torch("block", "gamma"), make_torch("norm", "weight"), make_torch("norm", "bias")]
    keras = [make_keras("block", "layer_scale"), make_keras("normalize", "gamma"), make_keras("normalize", "beta")]
    assert [keras for _, keras in pair(torch, keras)] == ["block.layer_scale", "normalize.gamma", "normalize.beta"]


def test_the_role_decides_among_variables_of_one_layer() -> None:
    torch = [make_torch("dense", "weight_v"), make_torch("dense", "weight_g")]
    keras = [make_keras("own", "g"), make_keras("own", "v")]
    assert pair(torch, keras) == [("dense.weight_v", "own.v"), ("dense.weight_g", "own.g")]


def test_a_scale_of_images_may_have_one_name_in_both_frameworks() -> None:
    torch = [Sublayer("parameter", "", (6, 1, 1), {"scale": TorchSources((SourceParameter("scale"),))})]
    keras = [make_keras("", "scale")]
    (layer_pair,) = pair_single_variables(torch, keras, LayerRoles(torch, []), LayerRoles(keras, []))
    assert (layer_pair.torch, layer_pair.keras) == (torch[0], keras[0])


def test_two_linear_layers_of_the_sizes_of_a_recurrence_are_not_joined() -> None:
    cell, head = ([make_torch(f"{owner}.{name}", "weight") for name in "ab"] for owner in ("cell", "head"))
    torch = [replace(layer, kind="linear", sizes=(6, 6)) for layer in (*cell, *head)]
    keras = [Sublayer("RNN", "rnn", (6, 6), {"weight_ih": KerasTarget("kernel"), "weight_hh": KerasTarget("state")})]
    assert align_own_recurrences(torch[:2], keras)[0] != torch[:2]
    assert align_own_recurrences(torch, keras) == (torch, keras)
