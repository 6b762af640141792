import numpy as np
import pytest

from common.errors import UserError
from common.map.description import DropoutDescription, ModelDescription
from common.map.dropout_pairs import ChannelLayout, pair_dropouts
from common.map.noise import Noise

DROPOUT = Noise("drop", "element", 0.1)
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 4, 5))  # [n, channels, height, width]
LAST = np.moveaxis(IMAGES, 1, -1)
SQUARE = np.random.default_rng(1).standard_normal((2, 4, 4, 4))


def described(*layers: DropoutDescription) -> ModelDescription:
    return ModelDescription([], {}, [], True, dropouts={f"at.{layer.name}": layer for layer in layers})


def paired(
    torch: np.ndarray, keras: np.ndarray, flattened: tuple[int, ...] | None = None, can_differ: bool = False
) -> ChannelLayout | None:
    descriptions = (
        described(DropoutDescription(DROPOUT, "a", unflattened_shape=flattened)),
        described(DropoutDescription(DROPOUT, "b")),
    )
    (pair,) = pair_dropouts(*descriptions, {"at.a": torch}, {"at.b": keras}, can_differ)
    assert (pair.torch, pair.keras) == ("a", "b")
    return pair.layout


def test_layouts() -> None:
    assert paired(IMAGES, IMAGES) is None
    assert paired(IMAGES, LAST) == ChannelLayout((3, 4, 5), (3, 4, 5))
    assert paired(SQUARE, np.moveaxis(SQUARE, 1, -1)) == ChannelLayout(
        (4, 4, 4), (4, 4, 4)
    )  # shapes do not tell them apart
    assert paired(SQUARE, SQUARE) is None
    assert paired(IMAGES.reshape(2, -1), LAST.reshape(2, -1), (3, 4, 5)) == ChannelLayout((60,), (3, 4, 5))
    assert paired(IMAGES, LAST.reshape(2, -1)) == ChannelLayout((3, 4, 5), (3, 4, 5))


def test_models_that_may_differ_drop_by_shape() -> None:
    assert paired(IMAGES, IMAGES + 1, can_differ=True) is None
    assert paired(IMAGES, LAST + 1, can_differ=True) == ChannelLayout((3, 4, 5), (3, 4, 5))
    for other in (IMAGES[:, :2], np.zeros((2, 60))):
        with pytest.raises(UserError, match="drop elements of different inputs"):
            paired(IMAGES, other, can_differ=True)
    with pytest.raises(UserError, match="drop elements of different inputs"):
        paired(SQUARE, SQUARE + 1, can_differ=True)  # channels first or last
    with pytest.raises(UserError, match="drop elements of different inputs"):
        paired(IMAGES.reshape(2, -1), LAST.reshape(2, -1) + 1, (3, 4, 5), can_differ=True)


def test_what_does_not_drop_the_same() -> None:
    with pytest.raises(UserError, match=r"^at.a \(PyTorch\) and at.b \(Keras\) drop elements of different inputs$"):
        paired(IMAGES, IMAGES + 1)
    with pytest.raises(UserError, match=r"^PyTorch drops at at.a \(0.1\), Keras at at.b \(0.2\)$"):
        pair_dropouts(
            described(DropoutDescription(DROPOUT, "a")),
            described(DropoutDescription(Noise("drop", "element", 0.2), "b")),
            {},
            {},
        )
    twice = DropoutDescription(DROPOUT, "b", calls=2)
    with pytest.raises(UserError, match=r"^a pass calls at.a \(PyTorch\) 1 times, and at.b \(Keras\) 2 times$"):
        pair_dropouts(described(DropoutDescription(DROPOUT, "a")), described(twice), {}, {})
    with pytest.raises(UserError, match=r"^PyTorch drops at at.a \(0.1\), Keras at no layer$"):
        pair_dropouts(described(DropoutDescription(DROPOUT, "a")), described(), {}, {})


def test_pairs_of_other_noise() -> None:
    """Layers are paired if they do the same to the same units, whatever the order of elements within an example."""
    depth, channels = Noise("drop", "example", 0.1), Noise("drop", "channel", 0.1)

    def pair(torch: Noise, keras: Noise, torch_input: np.ndarray, keras_input: np.ndarray) -> Noise:
        descriptions = described(DropoutDescription(torch, "a")), described(DropoutDescription(keras, "b"))
        (pair,) = pair_dropouts(*descriptions, {"at.a": torch_input}, {"at.b": keras_input})
        return pair.noise

    near = Noise("drop", "example", 0.1 + 1e-9)  # such as a rate that a library computes in float32
    assert pair(depth, near, IMAGES.reshape(2, 3, 20), LAST) == depth
    assert pair(channels, channels, IMAGES, LAST) == channels
    with pytest.raises(UserError, match=r"^at.a \(PyTorch\) and at.b \(Keras\) drop elements of different inputs$"):
        pair(channels, channels, IMAGES, IMAGES)  # the channels of PyTorch are not Keras's last axis
    for other in (DROPOUT, channels, Noise("drop", "example", 0.1, is_scaled=False), Noise("drop", "example", 0.11)):
        with pytest.raises(UserError, match=r"^PyTorch drops at at.a \(0.1 of examples\), Keras at at.b \("):
            pair(depth, other, IMAGES, IMAGES)
