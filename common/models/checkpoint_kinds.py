"""Kinds of checkpoints besides files of weights: checkpoints of TensorFlow, which Keras 2 loads, and run directories.

`model.checkpoint` may name one by mistake. The error says what it is instead.
"""

from pathlib import Path

from common.config.saved_config import CONFIG

STEPS = "checkpoints/step-*"


def find_tensorflow_prefix(path: Path) -> Path | None:
    """Return the prefix of the files of a SavedModel's variables or of a TensorFlow checkpoint; None for other paths.

    The file PREFIX.index has a checksum of every tensor.
    """
    path = path.absolute()  # so that it has a name
    prefix = path / "variables" / "variables" if (path / "saved_model.pb").is_file() else path
    return prefix if prefix.with_name(f"{prefix.name}.index").is_file() else None


def describe_checkpoint(path: Path) -> str | None:
    """Describe a path that is a checkpoint of TensorFlow or a run directory. Return None for other paths."""
    if (path / "saved_model.pb").is_file():
        return "is a TensorFlow SavedModel"
    if find_tensorflow_prefix(path) is not None or path.suffix == ".index" or ".data-" in path.name:
        return "is a TensorFlow checkpoint"
    if path.is_dir() and ((path / "checkpoint").is_file() or any(path.glob("*.index"))):
        return "is a directory of TensorFlow checkpoints"
    if (path / CONFIG).is_file() and (path / "checkpoints").is_dir():
        steps = sorted(path.glob(STEPS))
        choices = [*steps[-1:], *([path / "model"] if (path / "model").is_dir() else [])]
        return f"is a run directory{' with ' if choices else ', without a checkpoint'}{' and '.join(map(str, choices))}"
    return None
