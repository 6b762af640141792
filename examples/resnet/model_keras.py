"""A small residual network."""

import keras
from keras import layers


def convolution(x: keras.KerasTensor, outputs: int, size: int = 3, stride: int = 1) -> keras.KerasTensor:
    # With strides, padding="same" pads more at the end than at the start. PyTorch pads both alike, as done here.
    if size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    return layers.Conv2D(outputs, size, stride, padding="valid", use_bias=False)(x)


def norm(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)  # PyTorch's momentum is 1 - Keras's


def block(x: keras.KerasTensor, outputs: int, stride: int, activation: str) -> keras.KerasTensor:
    """Two convolutions, and a shortcut around them."""
    y = layers.Activation(activation)(norm(convolution(x, outputs, 3, stride)))
    y = norm(convolution(y, outputs))
    if stride > 1 or x.shape[-1] != outputs:
        x = norm(convolution(x, outputs, 1, stride))
    return layers.Activation(activation)(layers.add([y, x]))


def build(classes: int = 10, width: int = 8, activation: str = "relu") -> keras.Model:
    """Build a model that maps images [n, height, width, channels] to logits [n, classes].

    activation: an activation of Keras, such as relu or silu.
    """
    images = keras.Input((16, 16, 1), name="images")
    x = layers.Activation(activation)(norm(convolution(images, width)))
    x = block(block(x, width, 1, activation), 2 * width, 2, activation)
    return keras.Model(images, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))
