"""Layers that a script makes anew in each forward pass, whose parameters no optimizer trains."""

from common.diagnose.recorded.operations.operation_words import locate, shorten
from common.recording.operation_format import OperationTrace

LAYERS = {
    "linear", "bilinear", "embedding", "layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "prelu",
}  # fmt: skip
INITIALIZERS = ("uniform_", "normal_", "fill_", "zero_", "ones_", "zeros_", "constant_", "copy_")


def describe_fresh_layer(operations: OperationTrace | None) -> str:
    """Return words for the first layer whose parameters its own line initializes; empty without any.

    Args:
        operations: The operations of one script; None if they are not recorded.
    """
    initialized: dict[int, tuple[str, int]] = {}  # the lines that initialize tensors
    for operation in operations["operations"] if operations is not None else []:
        line = (operation["file"], operation["line"])
        if operation["name"] in LAYERS and any(initialized.get(x) == line for x in operation["inputs"]):
            return f"{shorten(operation['name'])} in {locate(operation)} `{shorten(operation['code'])}`"
        if operation["file"] and operation["name"].endswith(INITIALIZERS):
            initialized.update(dict.fromkeys(operation["outputs"], line))
    return ""
