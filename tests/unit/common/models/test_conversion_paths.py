"""Values of the keys `weights` and `convert`."""

from pathlib import Path

import pytest

from common.errors import UserError
from common.models.conversion_paths import check_conversion
from common.models.weight_shards import read_index


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files of all kinds."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.safetensors", "model.pt", "m.weights.h5", "m.keras", "old.h5", "m.onnx", "tf.index"):
        (tmp_path / name).write_text("")
    for directory in ("empty", "one", "sharded"):
        (tmp_path / directory).mkdir()
    (tmp_path / "one/model.safetensors").write_text("")
    (tmp_path / "sharded/model.safetensors.index.json").write_text('{"weight_map": {"a": "part.safetensors"}}')
    return tmp_path


@pytest.mark.parametrize(
    ("weights", "convert", "source", "to_keras"),
    [
        ("model.safetensors", "new.weights.h5", "model.safetensors", True),
        ("model.pt", "new.weights.json", "model.pt", True),
        ("one", "new.weights.h5", "one/model.safetensors", True),
        ("sharded", "new.weights.h5", "sharded/model.safetensors.index.json", True),
        ("m.weights.h5", "new.safetensors", "m.weights.h5", False),
        ("m.keras", "new.pt", "m.keras", False),
    ],
)
def test_the_names_say_which_framework_a_file_belongs_to(
    files: Path, weights: str, convert: str, source: str, to_keras: bool
) -> None:
    paths = check_conversion(weights, convert)
    assert paths is not None
    assert (paths.source, paths.target, paths.to_keras) == (Path(source), Path(convert), to_keras)


def test_nothing_is_converted_without_the_keys() -> None:
    assert check_conversion(None, None) is None


@pytest.mark.parametrize(
    ("weights", "convert", "error"),
    [
        ("model.pt", None, "weights=model.pt: has no target; set convert=FILE too, such as model.weights.h5"),
        (None, "a.weights.h5", "convert=a.weights.h5: has no source; set weights=FILE too, such as model.safetensors"),
        ("none.pt", "a.weights.h5", "weights=none.pt: no such file; correct it"),
        ("empty", "a.weights.h5", "weights=empty: is a directory without model.safetensors"),
        (
            "m.onnx",
            "a.weights.h5",
            "weights=m.onnx: unknown kind of file; give a file of .safetensors, .pt, .pth, .bin",
        ),
        ("old.h5", "a.pt", "weights=old.h5: is a file of Keras 2; load it in Keras, and save it with "),
        ("tf", "a.pt", "weights=tf: is a TensorFlow checkpoint; give a file of .safetensors"),
        ("model.pt", "a.h5", "convert=a.h5: unknown kind of file; give a file of .safetensors, .pt"),
        ("m.keras", "a.keras", "convert=a.keras: unknown kind of file; give a file of .safetensors"),
        ("model.pt", "a.pt", "convert=a.pt: is a file of PyTorch, as weights=model.pt is; choose a name that ends in "),
        (
            "m.keras",
            "a.weights.h5",
            "convert=a.weights.h5: is a file of Keras, as weights=m.keras is; choose a name that",
        ),
        ("model.pt", "m.weights.h5", "convert=m.weights.h5: already exists; choose another name"),
        ("model.pt", "no/m.weights.h5", "convert=no/m.weights.h5: there is no directory no; create it or choose"),
    ],
)
def test_a_mistake_is_an_error(files: Path, weights: str | None, convert: str | None, error: str) -> None:
    with pytest.raises(UserError) as raised:
        check_conversion(weights, convert)
    assert str(raised.value).startswith(error)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ("{}", "i: has no weight_map; give the index"),
        ('{"weight_map": {"a": "../model.pt"}}', "i: the file of a is not in the same directory"),
        ('{"weight_map": {"a": ["m.keras", ".."]}}', "i: the file of a is not in the same directory"),
        ('{"weight_map": {"a": 3}}', "i: the file of a is not in the same directory"),
        ('{"weight_map": {"a": "part-2.safetensors"}}', "i: its file part-2.safetensors is missing"),
    ],
)
def test_an_index_names_files_beside_it(files: Path, index: str, error: str) -> None:
    (files / "i.json").write_text(index)
    with pytest.raises(UserError, match=error):
        read_index("i", files / "i.json")
