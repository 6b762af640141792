"""Models of PyTorch in public repositories; repository_keras.py has the counterpart of each in the same repository."""

from torch import nn

from benchmarks.zoo.repositories import import_file
from benchmarks.zoo.repository_pairs import FNET, MNIST, SAMURAI, VAE


def alexnet() -> nn.Module:
    """Return an AlexNet of 1,000 classes."""
    model: nn.Module = import_file(SAMURAI, "AlexNet/pytorch_alexnet.py").AlexNet()
    return model


def fnet_encoder() -> nn.Module:
    """Return a layer of FNet."""
    model: nn.Module = import_file(FNET, "fnet_pytorch.py").FNetEncoder(32)
    return model


def mnist() -> nn.Module:
    """Return a network of two convolutions and two linear layers."""
    model: nn.Module = import_file(MNIST, "pytorch_mnist/model.py").MNISTNet()
    return model


def autoencoder() -> nn.Module:
    """Return an encoder and a decoder, which gets the mean without noise."""
    model: nn.Module = import_file(VAE, "vae/pytorch.py").vae_model(n=2, hidden_dim=64)[0]
    return model
