"""Image classifiers of keras.applications and KerasHub, small and with random weights."""

from typing import Any

import keras
import keras_hub
from keras_hub.src.models.clip.clip_vision_encoder import CLIPVisionEncoder
from keras_hub.src.models.metaclip_2.metaclip_2_vision_encoder import MetaCLIP2VisionEncoder
from keras_hub.src.models.siglip.siglip_vision_encoder import SigLIPVisionEncoder

from benchmarks.zoo.pairs import CLASSES
from benchmarks.zoo.vision_sizes import (
    DEPTH,
    HEADS,
    IMAGE_SIZE,
    INCEPTION_SIZE,
    INNER_WIDTH,
    PATCH_SIZE,
    RESNET50_SIZE,
    WIDTH,
)

IMAGE_SHAPE = (IMAGE_SIZE, IMAGE_SIZE, 3)
VIT_SIZES = {
    "image_shape": IMAGE_SHAPE,
    "patch_size": PATCH_SIZE,
    "num_layers": DEPTH,
    "num_heads": HEADS,
    "hidden_dim": WIDTH,
}
APPLICATION = {"weights": None, "classes": CLASSES, "classifier_activation": None, "input_shape": IMAGE_SHAPE}


def add_head(backbone: keras.Model) -> keras.Model:
    """Return a backbone with the mean over its positions, if it has any, and a dense layer."""
    features = backbone.output
    if len(features.shape) > 2:
        features = keras.ops.mean(features, axis=tuple(range(1, len(features.shape) - 1)))
    return keras.Model(backbone.input, keras.layers.Dense(CLASSES)(features))


def number_positions(model: keras.Model) -> keras.Model:
    """Set the numbers of the positions, which KerasHub keeps in a weight of zeros until a preset is loaded."""
    for variable in model.variables:
        if variable.name == "position_ids":
            variable.assign(keras.ops.arange(variable.shape[1])[None])
    return model


def without_dropout(model: keras.Model) -> keras.Model:
    """Set the rates of a model's dropout layers to 0."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0
    return model


def build_resnet(block_type: str, filters: list[int], blocks: list[int], image_size: int = IMAGE_SIZE) -> keras.Model:
    """Return a ResNet of KerasHub.

    Args:
        block_type: "basic_block" or "bottleneck_block".
        filters: The width of each stage.
        blocks: The number of blocks of each stage.
        image_size: The height and the width of the images.
    """
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=filters,
        stackwise_num_blocks=blocks,
        stackwise_num_strides=[1, *[2] * (len(filters) - 1)],
        block_type=block_type,
        image_shape=(image_size, image_size, 3),
    )
    return add_head(backbone)


def resnet_basic() -> keras.Model:
    """Return a ResNet of basic blocks, as ResNet-18 has them."""
    return build_resnet("basic_block", [64, 64, 128], [2, 2, 2])


def resnet_bottleneck() -> keras.Model:
    """Return a ResNet of bottleneck blocks, as ResNet-50 has them."""
    return build_resnet("bottleneck_block", [64, 128], [2, 2])


def resnet50_kerashub() -> keras.Model:
    """Return ResNet-50 in full size."""
    return build_resnet("bottleneck_block", [64, 128, 256, 512], [3, 4, 6, 3], RESNET50_SIZE)


def resnet50() -> keras.Model:
    """Return ResNet-50."""
    return keras.applications.ResNet50(**APPLICATION)


def mobilenet_v1() -> keras.Model:
    """Return a narrow MobileNet."""
    return keras.applications.MobileNet(**APPLICATION, alpha=0.25, dropout=0)


def mobilenet_v2() -> keras.Model:
    """Return a narrow MobileNetV2."""
    return keras.applications.MobileNetV2(**APPLICATION, alpha=0.35)


def efficientnet_b0() -> keras.Model:
    """Return EfficientNet-B0 without dropout and stochastic depth, which scales its images itself."""
    return without_dropout(keras.applications.EfficientNetB0(**APPLICATION))


def convnext_tiny() -> keras.Model:
    """Return ConvNeXt-Tiny."""
    return keras.applications.ConvNeXtTiny(**APPLICATION, include_preprocessing=False)


def efficientnet_b1() -> keras.Model:
    """Return EfficientNet-B1 without dropout and stochastic depth, which scales its images itself."""
    return without_dropout(keras.applications.EfficientNetB1(**APPLICATION))


def convnext_small() -> keras.Model:
    """Return ConvNeXt-Small without stochastic depth."""
    return keras.applications.ConvNeXtSmall(**APPLICATION, include_preprocessing=False)


def metaclip2() -> keras.Model:
    """Return the vision model of MetaCLIP 2, whose tokens are not normalized."""
    return number_positions(add_head(MetaCLIP2VisionEncoder(**VIT_SIZES, intermediate_dim=INNER_WIDTH)))


def vgg16() -> keras.Model:
    """Return the convolutions of VGG16 with a dense layer."""
    return add_head(keras.applications.VGG16(weights=None, include_top=False, input_shape=IMAGE_SHAPE))


def vgg19() -> keras.Model:
    """Return the convolutions of VGG19 with a dense layer."""
    return add_head(keras.applications.VGG19(weights=None, include_top=False, input_shape=IMAGE_SHAPE))


def mobilenet_v3_small() -> keras.Model:
    """Return MobileNetV3-Small without dropout."""
    return keras.applications.MobileNetV3Small(**APPLICATION, include_preprocessing=False, dropout_rate=0)


def efficientnet_v2_s() -> keras.Model:
    """Return EfficientNetV2-S without dropout and stochastic depth."""
    return without_dropout(keras.applications.EfficientNetV2S(**APPLICATION, include_preprocessing=False))


def inception_v3() -> keras.Model:
    """Return Inception v3, whose images have at least 75 x 75 pixels."""
    settings = APPLICATION | {"input_shape": (INCEPTION_SIZE, INCEPTION_SIZE, 3)}
    return keras.applications.InceptionV3(**settings)


def densenet121() -> keras.Model:
    """Return DenseNet121."""
    return keras.applications.DenseNet121(**APPLICATION)


def vit() -> keras.Model:
    """Return a ViT."""
    return add_head(keras_hub.models.ViTBackbone(**VIT_SIZES, mlp_dim=INNER_WIDTH, layer_norm_epsilon=1e-12))


def deit() -> keras.Model:
    """Return a DeiT."""
    return add_head(keras_hub.models.DeiTBackbone(**VIT_SIZES, intermediate_dim=INNER_WIDTH, layer_norm_epsilon=1e-12))


def build_dinov2(**settings: Any) -> keras.Model:  # noqa: ANN401  of DINOV2Backbone
    """Return a DINOv2."""
    backbone = keras_hub.models.DINOV2Backbone(
        **VIT_SIZES, intermediate_dim=INNER_WIDTH, position_embedding_shape=IMAGE_SHAPE, **settings
    )
    return add_head(backbone)


def dinov2() -> keras.Model:
    """Return a DINOv2."""
    return build_dinov2()


def dinov2_with_registers() -> keras.Model:
    """Return a DINOv2 with registers."""
    return build_dinov2(num_register_tokens=4)


def dinov3() -> keras.Model:
    """Return a DINOv3."""
    backbone = keras_hub.models.DINOV3Backbone(
        **VIT_SIZES, intermediate_dim=INNER_WIDTH, use_key_bias=False, num_register_tokens=4
    )
    return add_head(backbone)


def clip() -> keras.Model:
    """Return the vision model of CLIP with its first position, which is the pooled output."""
    encoder = CLIPVisionEncoder(**VIT_SIZES, intermediate_dim=INNER_WIDTH)
    return number_positions(add_head(keras.Model(encoder.input, encoder.output[:, 0])))


def siglip() -> keras.Model:
    """Return the vision model of SigLIP, which pools with attention."""
    return number_positions(add_head(SigLIPVisionEncoder(**VIT_SIZES, intermediate_dim=INNER_WIDTH)))


def swin() -> keras.Model:
    """Return a Swin Transformer of two stages with shifted windows."""
    backbone = keras_hub.models.SwinTransformerBackbone(
        IMAGE_SHAPE, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=2, drop_path=0
    )
    return add_head(backbone)


def segformer() -> keras.Model:
    """Return the encoder of SegFormer."""
    backbone = keras_hub.models.MiTBackbone(
        layerwise_depths=[1, 2], num_layers=2, layerwise_num_heads=[1, 2], layerwise_sr_ratios=[4, 2],
        max_drop_path_rate=0, layerwise_patch_sizes=[7, 3], layerwise_strides=[4, 2], image_shape=IMAGE_SHAPE,
        hidden_dims=[16, 32],
    )  # fmt: skip
    return add_head(backbone)


def hgnet() -> keras.Model:
    """Return an HGNetV2 of two stages."""
    backbone = keras_hub.models.HGNetV2Backbone(
        depths=[1, 1], embedding_size=24, hidden_sizes=[32, 64], stem_channels=[3, 16, 24], hidden_act="relu",
        use_learnable_affine_block=False, stackwise_stage_filters=[(24, 16, 32, 1, 2, 3), (32, 24, 64, 1, 2, 5)],
        apply_downsample=[False, True], use_lightweight_conv_block=[False, True], image_shape=IMAGE_SHAPE,
    )  # fmt: skip
    return add_head(keras.Model(backbone.input, list(backbone.output.values())[-1]))
