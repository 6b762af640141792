"""Image classifiers of transformers, small and with random weights."""

from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.zoo.pairs import CLASSES
from benchmarks.zoo.vision_sizes import DEPTH, HEADS, IMAGE_SIZE, INNER_WIDTH, PATCH_SIZE, WIDTH

LABELS: dict[str, Any] = {"num_labels": CLASSES}  # an argument that the configurations of all models take
VIT_SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER_WIDTH,
    "image_size": IMAGE_SIZE,
    "patch_size": PATCH_SIZE,
}


class Logits(nn.Module):
    """The logits of a classifier of transformers for images that are multiplied by a factor."""

    def __init__(self, classifier: nn.Module, factor: float = 1) -> None:
        super().__init__()
        self.classifier, self.factor = classifier, factor

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images [n, 3, height, width]."""
        logits: torch.Tensor = self.classifier(pixel_values=images * self.factor).logits
        return logits


class PooledClassifier(nn.Module):
    """A backbone of transformers, the mean over its positions if it has any, and a linear layer."""

    def __init__(self, backbone: nn.Module, width: int, output: str = "last_hidden_state") -> None:
        super().__init__()
        self.backbone, self.head, self.output = backbone, nn.Linear(width, CLASSES), output

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images [n, 3, height, width]."""
        features = getattr(self.backbone(pixel_values=images), self.output)
        if features.dim() == 4:
            features = features.flatten(2).transpose(1, 2)
        logits: torch.Tensor = self.head(features.mean(1) if features.dim() == 3 else features)
        return logits


def build_resnet(layer_type: str, **settings: Any) -> nn.Module:  # noqa: ANN401  of ResNetConfig
    """Return a ResNet with three stages."""
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 64, 128], depths=[2, 2, 2], layer_type=layer_type, **settings
    )
    return PooledClassifier(transformers.ResNetModel(config), 128)


def resnet_basic() -> nn.Module:
    """Return a ResNet of basic blocks, as ResNet-18 has them."""
    return build_resnet("basic")


def resnet_bottleneck() -> nn.Module:
    """Return a ResNet of bottleneck blocks, as ResNet-50 has them."""
    config = transformers.ResNetConfig(embedding_size=64, hidden_sizes=[256, 512], depths=[2, 2])
    return PooledClassifier(transformers.ResNetModel(config), 512)


def resnet50_kerashub() -> nn.Module:
    """Return the layers of ResNet-50 in full size, with strides in the second convolution of a block."""
    return PooledClassifier(transformers.ResNetModel(transformers.ResNetConfig()), 2048)


def resnet50() -> nn.Module:
    """Return ResNet-50 with strides in the first convolution of a block."""
    config = transformers.ResNetConfig(downsample_in_bottleneck=True, **LABELS)
    return Logits(transformers.ResNetForImageClassification(config))


def mobilenet_v1() -> nn.Module:
    """Return a narrow MobileNet."""
    config = transformers.MobileNetV1Config(
        image_size=IMAGE_SIZE, depth_multiplier=0.25, classifier_dropout_prob=0, **LABELS
    )
    return Logits(transformers.MobileNetV1ForImageClassification(config))


def mobilenet_v2() -> nn.Module:
    """Return a narrow MobileNetV2."""
    config = transformers.MobileNetV2Config(
        image_size=IMAGE_SIZE, depth_multiplier=0.35, classifier_dropout_prob=0, **LABELS
    )
    return Logits(transformers.MobileNetV2ForImageClassification(config))


def efficientnet_b0() -> nn.Module:
    """Return EfficientNet-B0 with the momentum of BatchNorm that is 0.99 in Keras."""
    return _build_efficientnet(1.0)


def _build_efficientnet(depth: float) -> nn.Module:
    """Return an EfficientNet of width 1 without dropout."""
    config = transformers.EfficientNetConfig(
        **LABELS,
        width_coefficient=1.0,
        depth_coefficient=depth,
        batch_norm_momentum=0.01,
        image_size=IMAGE_SIZE,
        hidden_dim=1280,
        dropout_rate=0,
        drop_connect_rate=0,
    )
    return Logits(transformers.EfficientNetForImageClassification(config), 1 / 255)  # as Keras's model does


def convnext_tiny() -> nn.Module:
    """Return ConvNeXt-Tiny with the epsilon of Keras's norms."""
    config = transformers.ConvNextConfig(image_size=IMAGE_SIZE, layer_norm_eps=1e-6, **LABELS)
    return Logits(transformers.ConvNextForImageClassification(config))


def efficientnet_b1() -> nn.Module:
    """Return EfficientNet-B1, with the momentum that Keras has in every norm."""
    model = _build_efficientnet(1.1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.01
    return model


def convnext_small() -> nn.Module:
    """Return ConvNeXt-Small with the epsilon of Keras's norms."""
    config = transformers.ConvNextConfig(image_size=IMAGE_SIZE, depths=[3, 3, 27, 3], layer_norm_eps=1e-6, **LABELS)
    return Logits(transformers.ConvNextForImageClassification(config))


def metaclip2() -> nn.Module:
    """Return the vision model of MetaCLIP 2, whose tokens are not normalized."""
    model = transformers.MetaClip2VisionModel(transformers.MetaClip2VisionConfig(**VIT_SIZES))
    return PooledClassifier(model, WIDTH)


def vit() -> nn.Module:
    """Return a ViT."""
    config = transformers.ViTConfig(**VIT_SIZES)
    return PooledClassifier(transformers.ViTModel(config, add_pooling_layer=False), WIDTH)


def deit() -> nn.Module:
    """Return a DeiT."""
    config = transformers.DeiTConfig(**VIT_SIZES)
    return PooledClassifier(transformers.DeiTModel(config, add_pooling_layer=False), WIDTH)


def dinov2() -> nn.Module:
    """Return a DINOv2."""
    config = transformers.Dinov2Config(
        **{name: size for name, size in VIT_SIZES.items() if name != "intermediate_size"}, mlp_ratio=2
    )
    return PooledClassifier(transformers.Dinov2Model(config), WIDTH)


def dinov2_with_registers() -> nn.Module:
    """Return a DINOv2 with registers."""
    config = transformers.Dinov2WithRegistersConfig(
        **{name: size for name, size in VIT_SIZES.items() if name != "intermediate_size"},
        mlp_ratio=2,
        num_register_tokens=4,
    )
    return PooledClassifier(transformers.Dinov2WithRegistersModel(config), WIDTH)


def dinov3() -> nn.Module:
    """Return a DINOv3."""
    config = transformers.DINOv3ViTConfig(**VIT_SIZES, num_register_tokens=4, pos_embed_rescale=None)
    return PooledClassifier(transformers.DINOv3ViTModel(config), WIDTH)


def clip() -> nn.Module:
    """Return the vision model of CLIP, which normalizes only the pooled output."""
    model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VIT_SIZES))
    return PooledClassifier(model, WIDTH, "pooler_output")


def siglip() -> nn.Module:
    """Return the vision model of SigLIP, which pools with attention."""
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**VIT_SIZES))
    return PooledClassifier(model, WIDTH, "pooler_output")


def swin() -> nn.Module:
    """Return a Swin Transformer of two stages with shifted windows."""
    config = transformers.SwinConfig(
        image_size=IMAGE_SIZE, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
        drop_path_rate=0,
    )  # fmt: skip
    return PooledClassifier(transformers.SwinModel(config, add_pooling_layer=False), 32)


def segformer() -> nn.Module:
    """Return the encoder of SegFormer."""
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 2], sr_ratios=[4, 2], hidden_sizes=[16, 32], patch_sizes=[7, 3],
        strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[4, 4], drop_path_rate=0, layer_norm_eps=1e-6,
    )  # fmt: skip
    return PooledClassifier(transformers.SegformerModel(config), 32)


def hgnet() -> nn.Module:
    """Return an HGNetV2 of two stages."""
    config = transformers.HGNetV2Config(
        embedding_size=24, depths=[1, 1], hidden_sizes=[32, 64], stem_channels=[3, 16, 24],
        stage_in_channels=[24, 32], stage_mid_channels=[16, 24], stage_out_channels=[32, 64],
        stage_num_blocks=[1, 1], stage_downsample=[False, True], stage_light_block=[False, True],
        stage_kernel_size=[3, 5], stage_numb_of_layers=[2, 2],
    )  # fmt: skip
    return PooledClassifier(Backbone(transformers.HGNetV2Backbone(config)), 64)


class Backbone(nn.Module):
    """A backbone of transformers that returns feature maps, as a model that returns the last one."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pixel_values: torch.Tensor) -> transformers.modeling_outputs.BaseModelOutput:
        """Return the last feature map."""
        maps = self.backbone(pixel_values).feature_maps
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=maps[-1])
