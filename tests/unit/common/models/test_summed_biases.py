"""Biases of PyTorch whose sum is one bias in Keras."""

import numpy as np
import pytest

from common.errors import UserError
from common.map.description import ModelDescription, VariableDescription
from common.map.pair_models import PairedModels
from common.map.pair_variables import ParameterMap, VariablePair
from common.map.proof import _compare_trainable
from common.map.transformation import parse_transformation
from common.models.custom import _list_frozen
from common.models.summed_biases import check_sums
from common.models.user_weights import fold_sums


def describe(names: str, frozen: str) -> ModelDescription:
    variables = {name: VariableDescription(name, (2,), trainable=name not in frozen) for name in names}
    return ModelDescription([], variables, [], has_channels=False)


def pair(texts: dict[str, str], frozen: str = "") -> PairedModels:
    """Return models with parameters a to d of PyTorch. `frozen`: the letters of those that are not trained."""
    pairs = [VariablePair(name, parse_transformation(text)) for name, text in texts.items()]
    keras = describe("".join(texts), frozen)
    return PairedModels(describe("abcd", frozen), keras, ParameterMap(pairs, [], [], []), {}, None)


def test_all_terms_but_the_first_are_zero_and_frozen() -> None:
    models = pair({"x": "a + b + c", "y": "d"})
    check_sums(models)
    assert _list_frozen(models, {"torch": models.torch_description}) == ["b", "c"]
    weights = {name: np.full(2, 10.0**power) for power, name in enumerate("abcd")}
    assert {name: array[0] for name, array in fold_sums(weights, models.parameter_map).items()} == {
        **{"a": 111, "b": 0, "c": 0, "d": 1000}
    }


def test_sums_with_a_common_term_keep_their_values() -> None:
    weights = {name: np.full(2, 10.0**power) for power, name in enumerate("abc")}
    folded = fold_sums(weights, pair({"x": "a + c", "y": "b + c"}).parameter_map)
    assert {name: array[0] for name, array in folded.items()} == {"a": 101, "b": 110, "c": 0}


@pytest.mark.parametrize(
    ("texts", "frozen", "message"),
    [
        ({"x": "a + b"}, "a", "b is trained and a is frozen, but x of Keras is the sum of both, .*; freeze b"),
        ({"x": "a + b", "y": "b"}, "", "model.torch: b is added to another bias, and y of Keras holds it, too"),
        ({"x": "a + b", "y": "b + c"}, "", "model.torch: b is added to another bias, and y of Keras holds it, too"),
        ({"x": "a + b", "y": "c, b"}, "", "model.torch: b is added to another bias, and y of Keras holds it, too"),
    ],
)
def test_sums_that_cannot_be_trained_alike_are_refused(texts: dict[str, str], frozen: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_sums(pair(texts, frozen))


@pytest.mark.parametrize(
    ("text", "frozen", "message"),
    [
        ("a + b", "b", ""),
        ("a + b", "a", ""),
        ("a + b", "bx", "trained in PyTorch and not in Keras"),
        ("a + b", "ab", "trained in Keras and not in PyTorch"),
        ("a, b", "", ""),
        ("a, b", "b", "trained in PyTorch only in a"),
        ("a, b", "ab", "trained in Keras and not in PyTorch"),
    ],
)
def test_frozen_terms_and_parts_are_compared(text: str, frozen: str, message: str) -> None:
    models = pair({"x": text}, frozen)
    errors = _compare_trainable(models.parameter_map, models.torch_description, models.keras_description)
    assert [error.partition(": ")[2] for error in errors] == ([message] if message else [])
