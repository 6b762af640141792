"""Pairs of single variables of classes that neither framework has."""

from common.map.layer_roles import LayerRoles
from common.map.pair_sublayers import pair_by_signature
from common.map.sublayers import KerasTarget, Sublayer, TorchSources


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
