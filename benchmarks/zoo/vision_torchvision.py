"""Image classifiers of torchvision, which needs an environment of its own (`torch.python`)."""

import torch
import torchvision
from torch import nn

from benchmarks.zoo.pairs import CLASSES


class ConvolvedVgg(nn.Module):
    """The convolutions of a VGG, the mean over the positions, and a linear layer."""

    def __init__(self, vgg: torchvision.models.VGG) -> None:
        super().__init__()
        self.features, self.head = vgg.features, nn.Linear(512, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images [n, 3, height, width]."""
        logits: torch.Tensor = self.head(self.features(images).mean((2, 3)))
        return logits


def vgg16() -> nn.Module:
    """Return the convolutions of VGG16 with a linear layer."""
    return ConvolvedVgg(torchvision.models.vgg16())


def vgg19() -> nn.Module:
    """Return the convolutions of VGG19 with a linear layer."""
    return ConvolvedVgg(torchvision.models.vgg19())


def densenet121() -> nn.Module:
    """Return DenseNet121."""
    return torchvision.models.densenet121(num_classes=CLASSES)


def resnet50() -> nn.Module:
    """Return ResNet-50."""
    return torchvision.models.resnet50(num_classes=CLASSES)


def mobilenet_v2() -> nn.Module:
    """Return a narrow MobileNetV2 without dropout."""
    return torchvision.models.mobilenet_v2(num_classes=CLASSES, width_mult=0.35, dropout=0.0)


def efficientnet_b0() -> nn.Module:
    """Return EfficientNet-B0 without dropout and stochastic depth."""
    return torchvision.models.efficientnet_b0(num_classes=CLASSES, dropout=0.0, stochastic_depth_prob=0.0)


def convnext_tiny() -> nn.Module:
    """Return ConvNeXt-Tiny without stochastic depth."""
    return torchvision.models.convnext_tiny(num_classes=CLASSES, stochastic_depth_prob=0.0)


def mobilenet_v3_small() -> nn.Module:
    """Return MobileNetV3-Small without dropout."""
    return torchvision.models.mobilenet_v3_small(num_classes=CLASSES, dropout=0.0)


def efficientnet_v2_s() -> nn.Module:
    """Return EfficientNetV2-S without dropout and stochastic depth."""
    return torchvision.models.efficientnet_v2_s(num_classes=CLASSES, dropout=0.0, stochastic_depth_prob=0.0)


def inception_v3() -> nn.Module:
    """Return Inception v3 without its auxiliary classifier and dropout."""
    return torchvision.models.inception_v3(num_classes=CLASSES, aux_logits=False, dropout=0.0, init_weights=False)
