"""Changes that remove the differences of each pair one by one."""

from collections.abc import Sequence

LADDERS = {  # the changes of each pair in their order; after N changes, the first N are applied
    "vgg16": ("head", "dropout"),
    "resnet50": ("biases", "strides", "epsilon", "momentum"),
    "densenet121": ("epsilon", "momentum"),
}
TORCH_CHANGES = {"head", "dropout", "strides"}  # those that change PyTorch's model; the others change Keras's
PAPER_CHANGES = {"vgg16": 1, "resnet50": 0, "densenet121": 0}  # how many of them the paper's own models have
CLASSES, IMAGE_SIZE = 10, 32


def select_changes(pair: str, count: int) -> Sequence[str]:
    """Return the first `count` changes of a pair."""
    return LADDERS[pair][:count]
