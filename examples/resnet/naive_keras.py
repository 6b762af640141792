"""A naive port of model_torch.py to Keras, with three mistakes, which docs/diagnosis.md finds one by one.

Each of the functions `build...` corrects one mistake more than the function above it.
"""

import keras
from keras import layers


def _port(pads_same: bool, epsilon: float, momentum: float) -> keras.Model:
    """Build the port. pads_same: whether convolutions pad as padding="same" does, or alike at the start and the end."""

    def convolution(x: keras.KerasTensor, outputs: int, size: int, stride: int) -> keras.KerasTensor:
        if pads_same or size == 1:
            return layers.Conv2D(outputs, size, stride, padding="same", use_bias=False)(x)
        return layers.Conv2D(outputs, size, stride, use_bias=False)(layers.ZeroPadding2D(size // 2)(x))

    def norm(x: keras.KerasTensor) -> keras.KerasTensor:
        return layers.BatchNormalization(epsilon=epsilon, momentum=momentum)(x)

    def block(x: keras.KerasTensor, outputs: int, stride: int) -> keras.KerasTensor:
        y = layers.ReLU()(norm(convolution(x, outputs, 3, stride)))
        y = norm(convolution(y, outputs, 3, 1))
        if stride > 1:
            x = norm(convolution(x, outputs, 1, stride))
        return layers.ReLU()(layers.add([y, x]))

    images = keras.Input((16, 16, 1), name="images")
    x = block(block(layers.ReLU()(norm(convolution(images, 8, 3, 1))), 8, 1), 16, 2)
    return keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def build() -> keras.Model:
    """Build the port with the defaults of Keras."""
    return _port(pads_same=True, epsilon=1e-3, momentum=0.99)


def build_padded_alike() -> keras.Model:
    """Build the port with as much padding at the start as at the end, as in PyTorch."""
    return _port(pads_same=False, epsilon=1e-3, momentum=0.99)


def build_with_epsilon() -> keras.Model:
    """Build the port with PyTorch's padding and epsilon."""
    return _port(pads_same=False, epsilon=1e-5, momentum=0.99)


def build_with_momentum() -> keras.Model:
    """Build the port with PyTorch's padding, epsilon and momentum, which is 1 - Keras's."""
    return _port(pads_same=False, epsilon=1e-5, momentum=0.9)
