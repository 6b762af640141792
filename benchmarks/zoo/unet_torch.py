"""U-Nets (arXiv 1505.04597) for PyTorch that choose a class for each pixel."""

import torch
from torch import nn

from benchmarks.zoo.pairs import CLASSES

WIDTHS = (8, 16, 32)  # channels of each level; the last level is the bottom


def build_block(inputs: int, outputs: int) -> nn.Sequential:
    """Return two convolutions, each followed by BatchNorm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def build_upsampling(is_transposed: bool, inputs: int, outputs: int) -> nn.Module:
    """Return a layer that doubles height and width: a transposed convolution, or bilinear with a 1x1 convolution."""
    if is_transposed:
        return nn.ConvTranspose2d(inputs, outputs, 2, 2)
    return nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(inputs, outputs, 1))


class UNet(nn.Module):
    """A U-Net. `is_transposed` says whether transposed convolutions double the size."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(map(build_block, (3, *WIDTHS), WIDTHS))
        self.pooling = nn.MaxPool2d(2)
        steps = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))  # inputs and outputs of the levels upwards
        self.upsampling = nn.ModuleList(build_upsampling(is_transposed, *step) for step in steps)
        self.decoder = nn.ModuleList(build_block(2 * outputs, outputs) for _, outputs in steps)
        self.head = nn.Conv2d(WIDTHS[0], CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [n, CLASSES, height, width] of images [n, 3, height, width]."""
        x, levels = images, []
        for number, block in enumerate(self.encoder):
            x = block(self.pooling(x) if number else x)
            levels.append(x)
        for level, upsampling, block in zip(levels[-2::-1], self.upsampling, self.decoder, strict=True):
            x = block(torch.cat([level, upsampling(x)], 1))
        logits: torch.Tensor = self.head(x)
        return logits


def unet_transposed() -> nn.Module:
    """Return a U-Net with transposed convolutions."""
    return UNet(is_transposed=True)


def unet_bilinear() -> nn.Module:
    """Return a U-Net with bilinear upsampling."""
    return UNet(is_transposed=False)
