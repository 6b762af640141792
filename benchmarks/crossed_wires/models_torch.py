"""Models of torchvision, which needs an environment of its own (`torch.python`)."""

import torchvision
from torch import nn

from benchmarks.crossed_wires.ladders import CLASSES, select_changes


def vgg16(changes: int) -> nn.Module:
    """Return VGG16; the change "head" removes the pooling to 7x7 positions, as the authors of CrossedWires did."""
    selected = select_changes("vgg16", changes)
    model = torchvision.models.vgg16(num_classes=CLASSES, dropout=0.0 if "dropout" in selected else 0.5)
    if "head" in selected:
        model.avgpool, model.classifier[0] = nn.Identity(), nn.Linear(512, 4096)
    return model


def resnet50(changes: int) -> nn.Module:
    """Return ResNet-50; "strides" moves them to the first convolution of a block, as in Keras."""
    model = torchvision.models.resnet50(num_classes=CLASSES)
    if "strides" in select_changes("resnet50", changes):
        for stage in (model.layer2, model.layer3, model.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return model


def densenet121(changes: int) -> nn.Module:
    """Return DenseNet121. The changes only affect Keras's model."""
    return torchvision.models.densenet121(num_classes=CLASSES)
