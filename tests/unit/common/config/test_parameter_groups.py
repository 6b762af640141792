"""Tests of parameter groups: their forms, the parameters that they choose, and mistakes."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.parameter_groups import GroupSettings, assign_groups, check_groups, expand_groups, find_overlaps
from common.errors import UserError

SHAPES = {
    "bert.embeddings.word_embeddings.weight": (30, 4),
    "bert.encoder.layer.0.dense.weight": (4, 4),
    "bert.encoder.layer.0.dense.bias": (4,),
    "bert.encoder.layer.1.dense.weight": (4, 4),
    "bert.encoder.layer.1.norm.weight": (4,),
    "classifier.weight": (3, 4),
}


def test_biases_and_norms_do_not_decay() -> None:
    groups = assign_groups(["no_decay_on_bias_and_norm"], 0.01, SHAPES)
    assert {name for name, group in groups.items() if not group.weight_decay} == {
        "bert.encoder.layer.0.dense.bias",
        "bert.encoder.layer.1.norm.weight",
    }


def test_layerwise_decay_is_that_of_electra() -> None:
    groups = assign_groups(expand_groups([{"layerwise_decay": 0.5}], SHAPES), 0.0, SHAPES)
    scales = {name.removeprefix("bert."): group.learning_rate_scale for name, group in groups.items()}
    assert scales == {
        "embeddings.word_embeddings.weight": 0.125,
        "encoder.layer.0.dense.weight": 0.25,
        "encoder.layer.0.dense.bias": 0.25,
        "encoder.layer.1.dense.weight": 0.5,
        "encoder.layer.1.norm.weight": 0.5,
        "classifier.weight": 1.0,
    }


def test_last_group_that_sets_a_value_wins() -> None:
    groups = [
        {"match": "*layer.0*", "learning_rate_scale": 0.1, "weight_decay": 0.5},
        {"match": "*.bias | classifier*", "weight_decay": 0},
    ]
    assigned = assign_groups(groups, 0.01, SHAPES)
    assert assigned["bert.encoder.layer.0.dense.bias"] == GroupSettings(0, 0.1)
    assert assigned["bert.encoder.layer.0.dense.weight"] == GroupSettings(0.5, 0.1)
    assert assigned["classifier.weight"] == GroupSettings(0)
    assert assigned["bert.encoder.layer.1.norm.weight"] == GroupSettings(0.01)


def test_overlaps_name_the_groups_and_their_parameters() -> None:
    overlapping = [
        {"match": "*layer.0*", "weight_decay": 0.5, "learning_rate_scale": 0.1},
        "no_decay_on_bias_and_norm",
        {"match": "*norm*", "weight_decay": 0},
        {"match": "*dense.weight", "weight_decay": 0.5, "learning_rate_scale": 1},
    ]
    assert find_overlaps(overlapping, SHAPES) == [
        "match=*layer.0* and then no_decay_on_bias_and_norm set weight_decay of bert.encoder.layer.0.dense.bias: the "
        "last one wins",
        "match=*layer.0* and then match=*dense.weight set learning_rate_scale of bert.encoder.layer.0.dense.weight: "
        "the last one wins",
    ]
    assert find_overlaps([{"match": "*", "frozen": True}, {"match": "*.?.*", "frozen": False}], SHAPES) == [
        "match=* and then match=*.?.* set frozen of bert.encoder.layer.0.dense.weight and 3 more: the last one wins"
    ]
    assert not find_overlaps([*overlapping[1:3], {"match": "*norm*", "learning_rate_scale": 2}], SHAPES)


@given(pattern=st.sampled_from(["*bias", "bert.*", "*.layer.?.*", "classifier.weight"]), decay=st.floats(0, 1))
def test_a_part_of_the_parameters_gets_the_same_groups(pattern: str, decay: float) -> None:
    """A parameter server has only some of the parameters."""
    groups = expand_groups([{"layerwise_decay": 0.9}, {"match": pattern, "weight_decay": decay}], SHAPES)
    whole = assign_groups(groups, 0.01, SHAPES)
    for name, shape in SHAPES.items():
        assert assign_groups(groups, 0.01, {name: shape}) == {name: whole[name]}
        assert whole[name].weight_decay == (decay if fnmatchcase(name, pattern) else 0.01)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"match": "zzz", "frozen": True}], "match=zzz matches no parameter; the model has bert.embeddings"),
        ([{"match": "*", "frozen": True}], r"match=\* matches every parameter"),
        ([{"match": "bert*", "frozen": True}, {"match": "class*", "frozen": True}], "all parameters are frozen"),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused(groups: list[object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        expand_groups(groups, SHAPES)


def test_layerwise_decay_needs_numbered_layers() -> None:
    with pytest.raises(UserError, match="no parameter has a number in its name"):
        expand_groups([{"layerwise_decay": 0.9}], {"classifier.weight": (3, 4)})


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("no_decay", "no_decay is not a group; use no_decay_on_bias_and_norm"),
        ({"match": "a*"}, "is not a group"),
        ({"frozen": True}, "is not a group"),
        ({"match": "a*", "frozn": True}, "is not a group"),
        ({"match": "a*", "frozen": 1}, "frozen=1: must be true or false"),
        ({"match": "a*", "weight_decay": -1}, "weight_decay=-1: must be a number at least 0"),
        ({"match": "a*", "learning_rate_scale": float("inf")}, "learning_rate_scale=inf: must be a number at least 0"),
        ({"match": "a*", "weight_decay": True}, "weight_decay=True: must be a number"),
        ({"layerwise_decay": 1.5}, "layerwise_decay=1.5: must be a number above 0, at most 1"),
    ],
)
def test_mistakes_are_errors_of_one_line(group: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check_groups([group])
    assert "\n" not in str(caught.value)
