"""Weights that are divided into several files, the shards. An index, a JSON file, has the file of each tensor.

Hugging Face's index is model.safetensors.index.json or pytorch_model.bin.index.json; Keras's is NAME.weights.json.
"""

from pathlib import Path

from common.errors import UserError
from common.records.files import read_json_object

INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
# The files of a directory in Hugging Face format. The first file that exists is read.
MODEL_FILES = (
    "model.safetensors",
    f"model{INDEX_SUFFIXES[0]}",
    "pytorch_model.bin",
    f"pytorch_model{INDEX_SUFFIXES[1]}",
)


def find_model_file(directory: Path) -> Path | None:
    """Return the file with the weights of a directory in Hugging Face format, or the index of several; else None."""
    return next((directory / name for name in MODEL_FILES if (directory / name).is_file()), None)


def read_index(location: str, path: Path) -> dict[str, list[Path]]:
    """Return the files in which an index places each tensor, or in Keras the tensors of each layer.

    Args:
        location: The key and the file for errors, such as weights=model.pt.
        path: The path of the index.

    Raises:
        UserError: The file is not an index, or names a file that is missing or outside of its directory.
    """
    places = read_json_object(path).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{location}: has no weight_map; give the index that was saved with the shards")
    files = {name: [entry] if isinstance(entry, str) else entry for name, entry in places.items()}
    for name, entries in files.items():
        for entry in entries if isinstance(entries, list) else [entries]:
            if not isinstance(entry, str) or entry in ("", "..") or Path(entry).name != entry:
                raise UserError(f"{location}: the file of {name} is not in the same directory; save the weights again")
            if not path.with_name(entry).is_file():
                raise UserError(f"{location}: its file {entry} is missing; fetch or save it again")
    return {name: [path.with_name(entry) for entry in entries] for name, entries in files.items()}
