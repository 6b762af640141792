"""Models of Keras in public repositories; repository_torch.py has the counterpart of each in the same repository."""

import keras

from benchmarks.zoo.repositories import import_file
from benchmarks.zoo.repository_pairs import FNET, MNIST, SAMURAI, VAE


def alexnet() -> keras.Model:
    """Return an AlexNet of 1,000 classes."""
    return import_file(SAMURAI, "AlexNet/keras_alexnet.py").MODEL


def fnet_encoder() -> keras.Layer:
    """Return a layer of FNet."""
    return import_file(FNET, "fnet_tensorflow.py").FNetEncoder(32)


def mnist() -> keras.Model:
    """Return a network of two convolutions and two dense layers."""
    return import_file(MNIST, "keras_mnist/model_utils.py").get_model()


def autoencoder() -> keras.Model:
    """Return an encoder and a decoder, which gets the mean without noise."""
    return import_file(VAE, "vae/keras.py").vae_model(n=2, hidden_dim=64)[0]
