"""The two files of a conversion of weights: which framework each belongs to, and checks before the slow work."""

import os
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.models.checkpoint_kinds import describe_checkpoint
from common.models.weight_shards import INDEX_SUFFIXES, find_model_file

# The suffixes of the files of each side. Files with a suffix of the second tuple are only read, not written.
TORCH_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin"), (".ckpt", *INDEX_SUFFIXES)
KERAS_SUFFIXES = (".weights.h5", ".weights.json"), (".keras",)
READABLE = {"torch": sum(TORCH_SUFFIXES, ()), "tf": sum(KERAS_SUFFIXES, ())}
WRITABLE = {"torch": TORCH_SUFFIXES[0], "tf": KERAS_SUFFIXES[0]}
OLD_SUFFIXES = (".h5", ".hdf5")


@dataclass(frozen=True)
class ConversionPaths:
    """The files of a conversion.

    Attributes:
        source: The file with the weights.
        target: The file to create.
        to_keras: Whether the source is PyTorch's and the target Keras's; otherwise the other way around.
    """

    source: Path
    target: Path
    to_keras: bool

    @property
    def source_location(self) -> str:
        """The key and the source, for errors."""
        return f"weights={self.source}"

    @property
    def target_location(self) -> str:
        """The key and the target, for errors."""
        return f"convert={self.target}"


def check_conversion(weights: str | None, convert: str | None) -> ConversionPaths | None:
    """Check the values of the keys `weights` and `convert`. Return None if neither is set. Raise UserError."""
    if weights is None and convert is None:
        return None
    if convert is None:
        raise UserError(f"weights={weights}: has no target; set convert=FILE too, such as model.weights.h5")
    if weights is None:
        raise UserError(f"convert={convert}: has no source; set weights=FILE too, such as model.safetensors")
    source, source_side = _find_source(weights)
    target = Path(convert)
    target_side = _find_side(target, WRITABLE)
    if target_side is None:
        raise UserError(f"convert={convert}: unknown kind of file; {_describe_suffixes(WRITABLE)}")
    if target_side == source_side:
        title, other = ("PyTorch", "tf") if target_side == "torch" else ("Keras", "torch")
        raise UserError(
            f"convert={convert}: is a file of {title}, as weights={weights} is; choose a name that ends in "
            f"{' or '.join(WRITABLE[other])}"
        )
    if os.path.lexists(target):
        raise UserError(f"convert={convert}: already exists; choose another name")
    if not target.parent.is_dir():
        raise UserError(f"convert={convert}: there is no directory {target.parent}; create it or choose another path")
    return ConversionPaths(source, target, target_side == "tf")


def _find_source(weights: str) -> tuple[Path, str]:
    """Return the file to read, also of a directory in Hugging Face format, and its side. Raise UserError."""
    path = Path(weights)
    if kind := describe_checkpoint(path):  # a training checkpoint or a run directory, not a file of weights
        raise UserError(f"weights={weights}: {kind}; {_describe_suffixes(READABLE)}")
    if path.is_dir():
        file = find_model_file(path)
        if file is None:
            raise UserError(f"weights={weights}: is a directory without model.safetensors; give a file with weights")
        return file, "torch"
    if not path.is_file():
        raise UserError(f"weights={weights}: no such file; correct it")
    side = _find_side(path, READABLE)
    if side is not None:
        return path, side
    if path.name.endswith(OLD_SUFFIXES):
        raise UserError(
            f"weights={weights}: is a file of Keras 2; load it in Keras, and save it with "
            'model.save_weights("model.weights.h5")'
        )
    raise UserError(f"weights={weights}: unknown kind of file; {_describe_suffixes(READABLE)}")


def _find_side(path: Path, suffixes: dict[str, tuple[str, ...]]) -> str | None:
    return next((side for side, group in suffixes.items() if path.name.endswith(group)), None)


def _describe_suffixes(suffixes: dict[str, tuple[str, ...]]) -> str:
    return f"give a file of {', '.join(suffixes['torch'])} (PyTorch) or {', '.join(suffixes['tf'])} (Keras)"
