"""Test of the description of layers whose hyperparameters belong to a part of them."""

import keras
import pytest
import tensorflow as tf

from tf_impl.record.model_facts import describe_layer


@pytest.mark.parametrize("reset_after", [True, False])
def test_a_recurrent_layer_has_the_hyperparameters_of_its_cell(reset_after: bool) -> None:
    layer = keras.layers.GRU(3, reset_after=reset_after, return_state=True)
    attributes = describe_layer(layer, "gru", {})["attributes"]
    assert attributes["reset_after"] is reset_after
    assert attributes["return_state"] is True


class OwnRegularizer(keras.regularizers.Regularizer):
    """A regularizer without a configuration, as scripts write them."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x)


@pytest.mark.parametrize(
    ("regularizer", "expected"),
    [
        (keras.regularizers.L1L2(0.5, 0.25), [0.5, 0.25]),
        (keras.regularizers.L2(0.25), [0.0, 0.25]),
        (keras.regularizers.OrthogonalRegularizer(), "OrthogonalRegularizer"),
        (OwnRegularizer(), "OwnRegularizer"),
    ],
)
def test_a_regularizer_is_described_by_its_factors_or_its_name(
    regularizer: keras.regularizers.Regularizer, expected: object
) -> None:
    layer = keras.layers.Dense(2, activity_regularizer=regularizer)
    assert describe_layer(layer, "dense", {})["attributes"]["activity_regularizer"] == expected
