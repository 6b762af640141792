"""Test of the description of layers whose hyperparameters belong to a part of them."""

import keras
import pytest

from tf_impl.record.model_facts import describe_layer


@pytest.mark.parametrize("reset_after", [True, False])
def test_a_recurrent_layer_has_the_hyperparameters_of_its_cell(reset_after: bool) -> None:
    layer = keras.layers.GRU(3, reset_after=reset_after, return_state=True)
    attributes = describe_layer(layer, "gru", {})["attributes"]
    assert attributes["reset_after"] is reset_after
    assert attributes["return_state"] is True
