"""Models of Keras 2, the same models of Keras 3, and their counterparts in PyTorch."""

from importlib import import_module
from typing import Any

import torch
from torch import nn

FLAWS = {"kernel_regularizer": "l2", "bias_constraint": "max_norm", "activity_regularizer": "l1"}


def images(package: str) -> Any:
    keras, layers = import_module(package), import_module(f"{package}.layers")
    inputs = keras.Input((8, 8, 3), name="images")
    x = layers.Conv2D(4, 3, strides=2)(layers.ZeroPadding2D(1)(inputs))
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Dense(3)(layers.Dropout(0.5)(layers.Flatten()(x))))


def images_two() -> Any:
    return images("tf_keras")


def tokens(package: str, **settings: str) -> Any:
    keras, layers = import_module(package), import_module(f"{package}.layers")
    mean = layers.GlobalAveragePooling1D()

    class Tokens(keras.Model):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm = layers.Embedding(20, 6), layers.LSTM(8, return_sequences=True)
            self.attention, self.norm = layers.MultiHeadAttention(2, 4), layers.LayerNormalization()
            self.head = layers.Dense(3, **settings)

        def call(self, tokens: Any) -> Any:
            x = self.lstm(self.embed(tokens))
            return self.head(mean(self.norm(x + self.attention(x, x))))

    return Tokens()


def tokens_two() -> Any:
    return tokens("tf_keras")


def flawed_two() -> Any:
    return tokens("tf_keras", **FLAWS)


def padded(package: str) -> Any:
    """Return an attention in which no token of the padding has a token to attend to."""
    keras, layers = import_module(package), import_module(f"{package}.layers")
    tokens = keras.Input((5,), dtype="int32", name="tokens")
    real = keras.Input((5,), dtype="int32", name="real")
    x, mask = layers.Embedding(20, 6)(tokens), layers.Reshape((5, 1))(real)
    scores = layers.Multiply()([mask, layers.Reshape((1, 5))(real)])
    return keras.Model([tokens, real], layers.MultiHeadAttention(2, 4)(x, x, attention_mask=scores))


def padded_two() -> Any:
    return padded("tf_keras")


def padded_three() -> Any:
    return padded("keras")


def gates(package: str) -> Any:
    """Return an LSTM with gates that are linear in the middle, as Keras 1 had them by default."""
    keras, layers = import_module(package), import_module(f"{package}.layers")
    inputs = keras.Input((5, 4), name="x")
    return keras.Model(inputs, layers.LSTM(6, recurrent_activation="hard_sigmoid")(inputs))


def gates_two() -> Any:
    return gates("tf_keras")


def gates_three() -> Any:
    return gates("keras")


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4, eps=1e-3, momentum=0.01)
        self.depthwise, self.dropout = nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.Dropout(0.5)
        self.head = nn.Linear(64, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(images)))
        x = torch.relu(self.depthwise(x))
        logits: torch.Tensor = self.head(self.dropout(x.flatten(1)))
        return logits


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(20, 6), nn.LSTM(6, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8, eps=1e-3), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(self.embed(tokens))
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        logits: torch.Tensor = self.head(x.mean(1))
        return logits
