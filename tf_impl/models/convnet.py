"""The convolutional network of the PyTorch tutorial "Writing distributed applications"."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D, SpatialDropout2D
from typing_extensions import override

from common.data.dropout import derive_site_key
from common.models.convnet import get_parameter_shapes, get_pooled_shape
from common.models.initial_weights import InitialCheckpoint
from tf_impl.dropout import apply_mask, compute_mask, hash_rows
from tf_impl.models.layout import NamedParameter


class ConvNet(keras.Model):
    """A network that takes `images` [n, height, width, channels] and returns logits [n, classes].

    The name of a layer's attribute is also the name of its parameters and the key of its dropout masks.
    """

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        """Create the layers. hf_config: the config.json of the initial checkpoint."""
        super().__init__()
        first_filters, second_filters = hf_config["channels"]
        kernel_size, hidden = hf_config["kernel_size"], hf_config["hidden_size"]
        self.image_shape = hf_config["image_shape"]
        self.conv1 = Conv2D(first_filters, kernel_size, padding="same")
        self.conv2 = Conv2D(second_filters, kernel_size, padding="same")
        self.channel_dropout = SpatialDropout2D(hf_config["dropout"])
        self.pool, self.flatten = MaxPooling2D(2), Flatten()
        self.fc1 = Dense(hidden)
        self.dropout = Dropout(hf_config["dropout"])
        self.fc2 = Dense(len(hf_config["id2label"]))

    @override
    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        x = tf.ensure_shape(inputs["images"], [None, *self.image_shape])
        x = tf.nn.relu(self.pool(self.conv1(x)))
        x = self._apply_dropout("channel_dropout", self.conv2(x), inputs.get("dropout_keys"), training)
        x = tf.nn.relu(self.pool(x))
        x = tf.nn.relu(self.fc1(self.flatten(x)))
        return self.fc2(self._apply_dropout("dropout", x, inputs.get("dropout_keys"), training))

    def _apply_dropout(self, name: str, x: tf.Tensor, example_keys: tf.Tensor | None, training: bool) -> tf.Tensor:
        """Apply the dropout layer of this name to x [n, ..., features]. SpatialDropout2D drops whole channels.

        example_keys: int64 [n] if dropout is aligned, otherwise None.
        """
        layer = getattr(self, name)
        if example_keys is None or not training:
            return layer(x, training=training)
        row_keys = hash_rows(example_keys, tf.constant(derive_site_key(name), tf.int64), [])
        mask = compute_mask(row_keys, tf.shape(x)[-1], layer.rate)
        return apply_mask(x, 1 / (1 - layer.rate), mask if x.shape.rank == 2 else mask[:, None, None])


def build(initial: InitialCheckpoint) -> keras.Model:
    """Build the model; the caller loads the initial weights."""
    hf_config = initial.hf_config
    model = ConvNet(hf_config)
    model({"images": keras.KerasTensor([None, *hf_config["image_shape"]])}, training=False)  # creates the variables
    shapes = get_parameter_shapes(hf_config)
    # Kernel shapes in PyTorch's order. fc1 gets four axes, because PyTorch flattens (channels, height, width) and Keras
    # flattens (height, width, channels).
    kernel_shapes = {name: shapes[f"{name}.weight"] for name in ("conv1", "conv2", "fc1", "fc2")}
    kernel_shapes["fc1"] = (shapes["fc1.weight"][0], *get_pooled_shape(hf_config))
    model.named_parameters = []
    for name, kernel_shape in kernel_shapes.items():
        layer = getattr(model, name)
        model.named_parameters += [
            NamedParameter(f"{name}.weight", layer.kernel, shapes[f"{name}.weight"], kernel_shape),
            NamedParameter(f"{name}.bias", layer.bias, shapes[f"{name}.bias"], None),
        ]
    return model
