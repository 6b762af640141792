"""Image classifiers of torchvision, which needs an environment of its own (`torch.python`)."""

import torch
import torchvision
from torch import nn

from benchmarks.zoo.pairs import CLASSES


class ConvolvedVgg(nn.Module):
    """The convolutions of VGG16, the mean over the positions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = torchvision.models.vgg16().features, nn.Linear(512, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images [n, 3, height, width]."""
        logits: torch.Tensor = self.head(self.features(images).mean((2, 3)))
        return logits


def vgg16() -> nn.Module:
    """Return the convolutions of VGG16 with a linear layer."""
    return ConvolvedVgg()


def densenet121() -> nn.Module:
    """Return DenseNet121."""
    return torchvision.models.densenet121(num_classes=CLASSES)


def resnet50() -> nn.Module:
    """Return ResNet-50."""
    return torchvision.models.resnet50(num_classes=CLASSES)


def mobilenet_v2() -> nn.Module:
    """Return MobileNetV2 without dropout."""
    return torchvision.models.mobilenet_v2(num_classes=CLASSES, dropout=0.0)


def efficientnet_b0() -> nn.Module:
    """Return EfficientNet-B0 without dropout and stochastic depth."""
    return torchvision.models.efficientnet_b0(num_classes=CLASSES, dropout=0.0, stochastic_depth_prob=0.0)
