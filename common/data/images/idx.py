"""IDX files, the format of MNIST (yann.lecun.com/exdb/mnist), as a source of images, also compressed with gzip.

A file is two zero bytes, the type of its values (8: uint8), the number of its dimensions, every dimension as a
big-endian uint32, and the values. Images have three dimensions, labels one.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from common.config.data import IdxSettings
from common.data.identity import Identity, collect_source_keys, identify_file
from common.data.images.image_corpus import ImageCorpus, LabelledImages, format_shape
from common.errors import UserError


def read(data: IdxSettings) -> ImageCorpus:
    """Read both splits.

    Raises:
        UserError: If a file is missing or wrong. The error names the file.
    """
    train, validation = (_read_split(*paths) for paths in find_idx_files(data.directory))
    return ImageCorpus(train, validation, [str(label) for label in range(train.labels.max() + 1)])


def identify(data: IdxSettings) -> Identity:
    """Return the config keys and the identities of the files."""
    files = [identify_file(path) for paths in find_idx_files(data.directory) for path in paths]
    return {**collect_source_keys(data), "directory": files}


def find_idx_files(directory: str) -> list[tuple[Path, Path]]:
    """Return the file of images and the file of labels, for training (train-*) and for validation (t10k-*).

    Raises:
        UserError: If a file is missing.
    """
    folder = Path(directory).expanduser()
    if not folder.is_dir():
        raise UserError(f"data.directory: {'not a directory' if folder.exists() else 'no such directory'}: {directory}")
    return [
        (_find_file(folder, f"{prefix}-images"), _find_file(folder, f"{prefix}-labels")) for prefix in ("train", "t10k")
    ]


def _find_file(folder: Path, prefix: str) -> Path:
    paths = sorted(path for path in folder.glob(f"{prefix}*") if path.is_file())
    if not paths:
        raise UserError(f"data.directory: {folder} has no {prefix}* (an IDX file, or its .gz); add it")
    return paths[0]  # an unpacked file comes before its .gz


def read_idx(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the images, uint8 [n, height, width], and the labels, uint8 [n].

    Raises:
        UserError: If a file is wrong. The error names the file.
    """
    images, labels = _read_array(images_path, 3), _read_array(labels_path, 1)
    if len(images) != len(labels):
        raise UserError(
            f"{labels_path}: {len(labels)} labels for the {len(images)} images of {images_path.name}; fetch both again"
        )
    if not images.size:
        raise UserError(f"{images_path}: no images; choose another file")
    return images, labels


def _read_split(images_path: Path, labels_path: Path) -> LabelledImages:
    images, labels = read_idx(images_path, labels_path)
    return LabelledImages(images[..., None], labels.astype(np.int32), str(images_path), str(labels_path))


def _read_array(path: Path, dimensions: int) -> np.ndarray:
    content = _read_content(path)
    start = 4 + 4 * dimensions  # position of the first value
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        raise UserError(
            f"{path}: begins with {content[:4].hex() or 'nothing'}, not {magic.hex()}: no IDX file of bytes in "
            f"{dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    shape = np.frombuffer(content[4:start], ">u4").tolist() if len(content) >= start else []
    if not shape or len(content) - start < math.prod(shape):
        raise UserError(f"{path}: cut off after {len(content)} bytes; fetch it again")
    if len(content) - start > math.prod(shape):
        raise UserError(
            f"{path}: has {len(content) - start} bytes of values, but its header says {format_shape(shape)}; "
            "fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_content(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return file.read()
    except gzip.BadGzipFile as error:
        raise UserError(f"{path}: not gzip ({error}); fetch it again, or rename it if it is not compressed") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}; fetch it again") from error
