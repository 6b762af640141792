"""Layers on one input that the words of their names pair."""

import pytest

from common.map.description import Connection, LayerDescription
from common.map.layer_roles import LayerRoles, order_by_roles
from common.map.sublayers import Sublayer


def build(names: list[str]) -> tuple[list[Sublayer], LayerRoles]:
    """Return equal layers that receive the output of one layer, and the roles of all of them."""
    body = Sublayer("linear", "body", (6, 4), {})
    heads = [Sublayer("linear", name, (6, 6), {}) for name in names]
    connections = {"body": Connection((4,)), **dict.fromkeys(names, Connection((6,), frozenset({"body"})))}
    layers = [LayerDescription("Dense", path, {}, {}, connection=value) for path, value in connections.items()]
    return heads, LayerRoles([body, *heads], layers)


def pair(torch: list[str], keras: list[str]) -> list[str]:
    heads_a, roles_a = build(torch)
    heads_b, roles_b = build(keras)
    return [x.path for x in order_by_roles(heads_a, heads_b, roles_a, roles_b, {"body": "body"})]


@pytest.mark.parametrize(
    ("torch", "keras", "expected"),
    [
        (["mu", "sigma"], ["sigmas", "mus"], ["mus", "sigmas"]),
        (["mus", "sigmas"], ["sigma", "mu"], ["mu", "sigma"]),
        (["mu", "sigma"], ["b", "mus"], ["mus", "b"]),
    ],
)
def test_a_name_that_begins_with_the_other_is_alike(torch: list[str], keras: list[str], expected: list[str]) -> None:
    assert pair(torch, keras) == expected


def test_an_equal_word_counts_more_than_one_that_begins_with_the_other() -> None:
    assert pair(["mu", "mus"], ["mus", "mu"]) == ["mu", "mus"]
    assert pair(["mu", "x"], ["mus", "mu"]) == ["mu", "mus"]


def test_the_order_stays_if_no_name_is_alike() -> None:
    assert pair(["left", "right"], ["mu", "sigma"]) == ["mu", "sigma"]
    assert pair(["mu", "sigma"], ["emu", "esigma"]) == ["emu", "esigma"]  # an end is no beginning
