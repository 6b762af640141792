"""U-Nets (arXiv 1505.04597) for Keras that choose a class for each pixel."""

import keras
from keras import layers

from benchmarks.zoo.pairs import CLASSES
from benchmarks.zoo.vision_sizes import IMAGE_SIZE

WIDTHS = (8, 16, 32)  # channels of each level; the last level is the bottom


def apply_block(x: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Apply two convolutions, each followed by BatchNorm and ReLU."""
    for _ in range(2):
        x = layers.Conv2D(outputs, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
    return x


def apply_upsampling(x: keras.KerasTensor, outputs: int, is_transposed: bool) -> keras.KerasTensor:
    """Double height and width with a transposed convolution, or bilinear with a 1x1 convolution."""
    if is_transposed:
        return layers.Conv2DTranspose(outputs, 2, 2)(x)
    return layers.Conv2D(outputs, 1)(layers.UpSampling2D(2, interpolation="bilinear")(x))


def build_unet(is_transposed: bool) -> keras.Model:
    """Return a U-Net. `is_transposed` says whether transposed convolutions double the size."""
    images = x = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), name="images")
    levels = []
    for number, width in enumerate(WIDTHS):
        x = apply_block(layers.MaxPooling2D(2)(x) if number else x, width)
        levels.append(x)
    for level, width in zip(levels[-2::-1], WIDTHS[-2::-1], strict=True):
        x = apply_block(layers.Concatenate()([level, apply_upsampling(x, width, is_transposed)]), width)
    return keras.Model(images, layers.Conv2D(CLASSES, 1)(x))


def unet_transposed() -> keras.Model:
    """Return a U-Net with transposed convolutions."""
    return build_unet(is_transposed=True)


def unet_bilinear() -> keras.Model:
    """Return a U-Net with bilinear upsampling."""
    return build_unet(is_transposed=False)
