"""Files of weights that are loaded into a module: all names, shapes, types and values are checked before."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from common.errors import UserError
from torch_impl.weight_file import load_weight_file, read_weights, save_weight_file


class Model(nn.Module):
    """A model with tied weights, a BatchNorm and two buffers, one of which is not saved."""

    _keys_to_ignore_on_load_unexpected = (r"\.mask$",)  # as models of transformers have it

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5)
        self.head.weight = self.tokens.weight
        self.register_buffer("places", torch.arange(4))
        self.register_buffer("ids", torch.arange(4), persistent=False)


Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], object]


def draw_tensors() -> Tensors:
    """Return the tensors of a model as safetensors has them: tied ones once."""
    torch.manual_seed(3)
    state = Model().state_dict()
    del state["head.weight"]
    return {
        name: tensor + torch.rand(tensor.shape) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def load(tmp_path: Path, tensors: object) -> tuple[dict[str, np.ndarray], list[str]]:
    path = tmp_path / "model.pt"
    torch.save(tensors, path)
    torch.manual_seed(0)
    loaded = load_weight_file(Model(), "weights=model.pt", path)
    return loaded.arrays, loaded.notes


@pytest.mark.parametrize(
    ("wrap", "note"),
    [
        (lambda tensors: tensors, ""),
        (lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()}, ""),
        (lambda tensors: {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, ""),
        (lambda tensors: {"model": tensors, "optimizer": {"state": {}, "param_groups": []}, "epoch": 3}, ""),
        (
            lambda tensors: {"state_dict": {f"net.{name}": x for name, x in tensors.items()}, "global_step": 3},
            "only the tensors under net. are used, without this prefix",
        ),
        (lambda tensors: tensors | {"ids": torch.arange(4)}, "ids: left out, because the model has the same values"),
        (lambda tensors: tensors | {"h.0.mask": torch.zeros(2)}, "h.0.mask: left out, as transformers does"),
        (lambda tensors: tensors | {"head.weight": tensors["tokens.weight"]}, ""),
        (
            lambda tensors: {n: x for n, x in tensors.items() if n != "places"},
            "places: not in the file; PyTorch's model",
        ),
    ],
    ids=["plain", "ddp", "compiled", "checkpoint", "lightning", "not saved", "ignored", "tied", "no integers"],
)
def test_a_state_dict_is_loaded(tmp_path: Path, wrap: Callable[[Tensors], object], note: str) -> None:
    tensors = draw_tensors()
    arrays, notes = load(tmp_path, wrap(tensors))
    assert notes == [] if not note else notes[0].startswith(note)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy(), err_msg=name)


def test_a_part_of_a_wrapper_is_loaded(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "a.safetensors")
    loaded = load_weight_file(Wrapper(), "weights=a.safetensors", tmp_path / "a.safetensors")
    assert loaded.notes == ["the tensors are used as those of the model's inner"]


def remove(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


def add(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (remove("head.bias"), "has no head.bias, which the model has"),
        (remove("tokens.weight"), "has no tokens.weight, which the model has"),
        (remove("norm.running_mean"), "has no norm.running_mean, which the model has"),
        (add("more", torch.ones(2)), "has more, which the model lacks"),
        (add("ids", torch.ones(4)), "has ids, which the model lacks"),
        (add("head.weight", torch.ones(5, 3)), "tokens.weight and head.weight differ, and the model has one tensor"),
        (add("head.bias", torch.ones(6)), "head.bias has the shape [6], the model's [5]"),
        (add("head.bias", torch.ones(5, dtype=torch.int64)), "head.bias is int64, the model's float32"),
        (add("places", torch.ones(4)), "places is float32, the model's int64"),
        (add("head.bias", torch.full((5,), torch.nan)), "head.bias has values that are infinite or not a number"),
        (add("norm.weight", torch.full((3,), torch.inf)), "norm.weight has values that are infinite or not a number"),
        (
            add("norm.weight", torch.full((3,), 1e300, dtype=torch.float64)),
            "norm.weight has values beyond the range of",
        ),
    ],
)
def test_a_file_of_another_model_is_refused(tmp_path: Path, change: Change, error: str) -> None:
    tensors = draw_tensors()
    change(tensors)
    with pytest.raises(UserError) as raised:
        load(tmp_path, tensors)
    assert str(raised.value).startswith(f"weights=model.pt: {error}")


@pytest.mark.parametrize(
    ("dtype", "notes"),
    [
        (
            torch.bfloat16,
            ["7 tensors of bfloat16 become float32, the type of the model, which holds all values exactly"],
        ),
        (torch.float64, ["7 tensors of float64 become float32, the type of the model, and values are rounded"]),
    ],
)
def test_other_types_are_reported(tmp_path: Path, dtype: torch.dtype, notes: list[str]) -> None:
    tensors = {
        name: (tensor.double() / 3).to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in draw_tensors().items()
    }
    del tensors["norm.bias"]
    tensors["norm.bias"] = torch.ones(3)
    arrays, reported = load(tmp_path, tensors)
    assert arrays["head.bias"].dtype == np.float32
    assert reported == [notes[0].replace("7", str(sum(x.dtype == dtype for x in tensors.values())))]


def test_a_parameter_that_its_module_does_not_save_is_an_error(tmp_path: Path) -> None:
    class Unsaved(nn.Linear):
        def _save_to_state_dict(self, destination: Tensors, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}weight"] = self.weight if keep_vars else self.weight.detach()

    torch.save(Unsaved(2, 2).state_dict(), tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"^weights=a: does not restore bias; let the model save these variables$"):
        load_weight_file(Unsaved(2, 2), "weights=a", tmp_path / "a.pt")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save(Model(), tmp_path / "model.pt")
    with pytest.raises(
        UserError, match=r"^weights=model.pt: has objects other than tensors, or is damaged; save model.state_dict\(\)$"
    ):
        load_weight_file(Model(), "weights=model.pt", tmp_path / "model.pt")


def test_shards_are_loaded(tmp_path: Path) -> None:
    tensors = draw_tensors()
    index = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(index.values()):
        save_file({name: tensors[name] for name in index if index[name] == file}, tmp_path / file)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    loaded = load_weight_file(Model(), "weights=x", path)
    np.testing.assert_array_equal(loaded.arrays["head.bias"], tensors["head.bias"].numpy())
    path.write_text(json.dumps({"weight_map": index | {"other": "model-0.safetensors"}}))
    with pytest.raises(UserError, match="weights=x: its files have no other; fetch or save all shards again"):
        load_weight_file(Model(), "weights=x", path)


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt"])
def test_what_was_saved_is_loaded(tmp_path: Path, name: str) -> None:
    model = Model()
    save_weight_file(model, "convert=a", tmp_path / name)
    fresh = Model()
    assert load_weight_file(fresh, "weights=a", tmp_path / name).notes == []
    for key, array in read_weights(model).items():
        np.testing.assert_array_equal(read_weights(fresh)[key], array)
    if name == "a.safetensors":
        assert "head.weight" not in load_file(tmp_path / name)
    else:
        Model().load_state_dict(torch.load(tmp_path / name, weights_only=True), strict=True)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^convert=a: cannot be written \("):
        save_weight_file(Model(), "convert=a", tmp_path / "none" / "a.safetensors")
