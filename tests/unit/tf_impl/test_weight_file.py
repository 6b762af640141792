"""Files of weights that are loaded into a Keras model: all names, shapes, types and values are checked before."""

from collections.abc import Callable
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from keras import layers

from common.errors import UserError
from tf_impl.weight_file import load_weight_file, read_weights, save_weight_file, set_weights

pytestmark = pytest.mark.slow

DENSE = "layers/dense/vars/0"
Change = Callable[[h5py.File], object]


def build(units: int = 4, compiled: bool = False) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(units), layers.Dropout(0.1), layers.BatchNormalization(), layers.Dense(2)]
    )
    if compiled:
        model.compile("adam", "mse")
        model.fit(np.ones((4, 3)), np.zeros((4, 2)), verbose=0)
    return model


@pytest.mark.parametrize("name", ["a.weights.h5", "a.weights.json", "a.keras"])
def test_what_was_saved_is_loaded(tmp_path: Path, name: str) -> None:
    model = build(compiled=True)
    if name == "a.keras":
        model.save(tmp_path / name)
    else:
        keras.saving.save_weights(model, tmp_path / name, max_shard_size=1e-7 if name.endswith("json") else None)
    loaded = load_weight_file(build(), "weights=a", tmp_path / name)
    assert loaded.notes == ["the slots of the optimizer are left out"]
    for a, b in zip(read_weights(model).values(), loaded.arrays.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_are_set_and_saved(tmp_path: Path) -> None:
    model = build()
    path = next(path for path, array in read_weights(model).items() if array.shape == (3, 4))
    set_weights(model, {path: np.full((3, 4), 7.0)})
    for name in ("a.weights.h5", "a.weights.json"):
        save_weight_file(model, "convert=a", tmp_path / name)
        assert 7.0 in [array.min() for array in load_weight_file(build(), "weights=a", tmp_path / name).arrays.values()]


def replace(array: np.ndarray) -> Change:
    def change(file: h5py.File) -> None:
        del file[DENSE]
        file[DENSE] = array

    return change


def link(file: h5py.File) -> None:
    del file[DENSE]
    file.create_dataset(DENSE, (3, 4), "f4", external=[("/etc/passwd", 0, 48)])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda file: file.pop(DENSE), f"has no {DENSE}, which the model has"),
        (
            lambda file: file.create_dataset("layers/dense_2/vars/0", (3,)),
            "has layers/dense_2/vars/0, which the model lacks",
        ),
        (replace(np.ones((4, 3), np.float32)), f"{DENSE} has the shape [4, 3], the model's [3, 4]"),
        (replace(np.ones((3, 4), np.int32)), f"{DENSE} is int32, the model's float32"),
        (replace(np.full((3, 4), np.nan)), f"{DENSE} has values that are infinite or not a number"),
        (link, f"{DENSE} is in another file; save the weights with model.save_weights"),
        (lambda file: file.attrs.create("layer_names", ["dense"]), "is a file of Keras 2; load it there"),
        (lambda file: file.create_group("_layer_checkpoint_dependencies"), "is a file of Keras 2; load it there"),
    ],
    ids=["missing", "superfluous", "shape", "integers", "nan", "link", "old", "2.13"],
)
def test_a_file_of_another_model_is_refused(tmp_path: Path, change: Change, error: str) -> None:
    path = tmp_path / "a.weights.h5"
    build().save_weights(path)
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(UserError) as raised:
        load_weight_file(build(), "weights=a", path)
    assert str(raised.value).startswith(f"weights=a: {error}")


def test_a_variable_that_its_layer_does_not_save_is_an_error(tmp_path: Path) -> None:
    class Unsaved(layers.Dense):
        def save_own_variables(self, store: dict[str, object]) -> None:
            store["0"] = self.kernel

        def load_own_variables(self, store: dict[str, np.ndarray]) -> None:
            self.kernel.assign(store["0"])

    model = keras.Sequential([keras.Input((3,)), Unsaved(4, name="last")])
    model.save_weights(tmp_path / "a.weights.h5")
    with pytest.raises(UserError, match=r"^weights=a: does not restore .*last/bias; let the model save"):
        load_weight_file(model, "weights=a", tmp_path / "a.weights.h5")


def test_other_types_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.weights.h5"
    build().save_weights(path)
    with h5py.File(path, "a") as file:
        replace(np.full((3, 4), 1 / 3))(file)
    loaded = load_weight_file(build(), "weights=a", path)
    assert loaded.notes == ["1 tensor of float64 becomes float32, the type of the model, and values are rounded"]


def test_an_order_of_bytes_is_not_reported(tmp_path: Path) -> None:
    build().save_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5", "a") as file:
        replace(np.ones((3, 4), ">f4"))(file)
    assert load_weight_file(build(), "weights=a", tmp_path / "a.weights.h5").notes == []


@pytest.mark.parametrize("name", ["a.weights.h5", "a.keras", "a.weights.json"])
def test_a_damaged_file_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("nothing")
    with pytest.raises(UserError, match=r"cannot be read|not valid JSON"):
        load_weight_file(build(), "weights=a", tmp_path / name)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^convert=a: cannot be written \("):
        save_weight_file(build(), "convert=a", tmp_path / "none" / "a.weights.h5")
