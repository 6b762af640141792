"""Tests of the operations that the recorder lists: from the input of the model to the loss, with their lines."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from common.recording.operation_format import Operation, OperationTrace
from common.recording.record_reader import open_record
from tests.unit.torch_impl.record.scripts import Tagger, compute_loss, draw_batch, read_facts, read_step, train


def update_by_hand(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()
    optimizer.zero_grad()
    scores = torch.log_softmax(model(tokens).flatten(0, 1), 0)  # the loss
    loss = -scores[torch.arange(len(scores)), labels.flatten()].mean() * 0.01
    loss.backward()
    optimizer.step()
    return loss.detach()


class InPlace(nn.Module):
    """Changes what it computes through a view, and by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.activation = nn.Embedding(20, 8), nn.ReLU(inplace=True)
        self.attention, self.scale = nn.MultiheadAttention(8, 2, batch_first=True), nn.Parameter(torch.ones(20, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.embedding(tokens) + 1.0).clone()
        first = x[:, 0]
        first.mul_(0.5)
        x[:, 1] = 0.0
        x = x + self.attention(x, x, x)[0]
        return functional.linear(x.contiguous(), self.scale.data)


class Doubling(TorchFunctionMode):
    """A mode of a script, which doubles what ReLU returns."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is functional.relu else result


def read_operations(directory: Path) -> OperationTrace:
    trace = open_record(directory).ranks[0].operations
    assert trace is not None
    return trace


def check_chain(trace: OperationTrace) -> None:
    """Check that the operations compute the loss from inputs, weights, labels and constants."""
    known = {*trace["names"].values()}
    assert trace["loss"] is not None
    for operation in trace["operations"]:
        computed = {number for number in operation["inputs"] if trace["tensors"][number]["dtype"] == "float32"}
        assert computed <= known, operation
        known |= {*operation["outputs"]}
    assert trace["loss"] in known
    assert trace["complete"]
    assert not _get_current_function_mode_stack()


def list_names(trace: OperationTrace) -> list[str]:
    return [operation["name"] for operation in trace["operations"]]


def find(trace: OperationTrace, name: str) -> Operation:
    return next(operation for operation in trace["operations"] if operation["name"] == name)


def test_loss_by_hand_is_listed_with_its_lines(tmp_path: Path) -> None:
    assert train(tmp_path / "record", update_by_hand)[0] == train(None, update_by_hand)[0]
    trace = read_operations(tmp_path / "record")
    check_chain(trace)
    assert list_names(trace) == [
        "Embedding", "Linear", "relu", "LayerNorm", "Dropout", "Linear", "flatten", "log_softmax", "arange", "flatten",
        "getitem", "mean", "neg", "mul",
    ]  # fmt: skip
    softmax, linear = find(trace, "log_softmax"), find(trace, "Linear")
    assert (softmax["file"], softmax["layer"], softmax["arguments"]) == (Path(__file__).name, "", {"1": 0})
    assert softmax["code"] == "scores = torch.log_softmax(model(tokens).flatten(0, 1), 0)  # the loss"
    assert (linear["file"], linear["layer"], linear["arguments"]["out_features"]) == ("scripts.py", "layer", 8)
    assert find(trace, "relu")["layer"] == "model"
    assert find(trace, "mul")["arguments"] == {"1": 0.01}
    assert find(trace, "getitem")["arguments"] == {"index": "[int64[20], int64[20]]"}
    names = trace["names"]
    assert linear["inputs"] == [names["layer/layer/input"], names["weight/layer.weight"], names["weight/layer.bias"]]
    assert linear["outputs"] == [names["layer/layer/output"]]
    tensors = read_step(tmp_path / "record", 1)
    statistics = trace["tensors"][names["layer/layer/output"]]
    assert statistics["shape"] == [4, 5, 8]
    assert statistics["sum"] == tensors["layer/layer/output"].astype("float64").sum()
    assert statistics["maximum"] == tensors["layer/layer/output"].max()


def test_function_of_the_loss_is_listed_without_its_reduction(tmp_path: Path) -> None:
    assert train(tmp_path / "record")[0] == train(None)[0]
    trace = read_operations(tmp_path / "record")
    check_chain(trace)
    losses, mean = trace["operations"][-2:]
    assert losses["name"] == "cross_entropy"
    assert (losses["arguments"]["ignore_index"], losses["arguments"]["reduction"]) == (3, "none")
    assert trace["tensors"][losses["outputs"][0]]["shape"] == [20]
    assert (mean["name"], mean["inputs"], mean["outputs"]) == ("mean", losses["outputs"], [trace["loss"]])
    assert mean["arguments"] == {}  # no label is ignored
    assert [losses[key] for key in ("file", "line", "code")] == [mean[key] for key in ("file", "line", "code")]
    assert len(read_facts(tmp_path / "record")["steps"][0]["terms"][0]) == 1  # the recorder sees the call once


@pytest.mark.parametrize("is_own", [True, False])
def test_labels_have_the_numbers_of_what_the_script_computed(is_own: bool, tmp_path: Path) -> None:
    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, labels = draw_batch()
        optimizer.zero_grad()
        scores = model(tokens)
        smooth = functional.one_hot(labels, 20) * 0.9 + 0.005
        loss = -(smooth * scores.log_softmax(2)).sum(2).mean() if is_own else functional.mse_loss(scores, smooth)
        loss.backward()
        optimizer.step()
        return loss.detach()

    train(tmp_path / "record", update)
    trace = read_operations(tmp_path / "record")
    number = trace["names"][f"batch/0/label/{'operand_0' if is_own else 'target'}"]
    assert find(trace, "add")["outputs"] == [number]
    tensors = read_step(tmp_path / "record", 1)
    label = tensors[f"batch/0/label/{'operand_0' if is_own else 'target'}"]
    assert trace["tensors"][number]["sum"] == label.astype("float64").sum()


def test_changes_in_place_are_operations(tmp_path: Path) -> None:
    assert train(tmp_path / "record", build_model=InPlace)[0] == train(None, build_model=InPlace)[0]
    trace = read_operations(tmp_path / "record")
    check_chain(trace)
    assert list_names(trace)[:8] == [
        "Embedding", "add", "ReLU", "clone", "getitem", "mul_", "setitem", "MultiheadAttention"
    ]  # fmt: skip
    activated, changed, replaced = (find(trace, name) for name in ("ReLU", "mul_", "setitem"))
    assert (find(trace, "getitem")["arguments"], replaced["arguments"]["index"]) == ({"index": "[:, 0]"}, "[:, 1]")
    assert activated["inputs"] != activated["outputs"]
    assert replaced["inputs"] == [changed["outputs"][1]]  # the tensor that a view changed
    assert find(trace, "MultiheadAttention")["inputs"][0] == replaced["outputs"][0]
    assert {"contiguous", "detach"}.isdisjoint(list_names(trace))
    assert find(trace, "linear")["layer"] == "model"


def test_compiled_model_has_no_operations(tmp_path: Path) -> None:
    def compile_tagger() -> nn.Module:
        model: nn.Module = torch.compile(Tagger(), backend="eager")  # type: ignore[assignment]
        return model

    train(tmp_path / "record", build_model=compile_tagger)
    assert open_record(tmp_path / "record").ranks[0].operations is None
    assert any(sentence.startswith("operations: ") for sentence in read_facts(tmp_path / "record")["not_recorded"])


def test_modes_of_the_script_stay_its_own(tmp_path: Path) -> None:
    """A script may leave a mode between the forward pass and the backward pass."""

    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, labels = draw_batch()
        optimizer.zero_grad()
        with Doubling() as mode:
            logits = model(tokens)
            assert _get_current_function_mode_stack()[-1] is mode
        with torch.device("meta"):
            assert torch.ones(1).device.type == "meta"
        assert torch.ones(1).device.type == "cpu"
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert train(tmp_path / "record", update)[0] == train(None, update)[0]
    trace = read_operations(tmp_path / "record")
    check_chain(trace)
    assert list_names(trace)[2:4] == ["relu", "mul"]


def test_default_device_may_change_during_a_step(tmp_path: Path) -> None:
    """PyTorch expects the mode of the default device at the bottom."""

    def update(model: Any, optimizer: Any) -> torch.Tensor:
        torch.set_default_device("cpu")
        tokens, labels = draw_batch()
        optimizer.zero_grad()
        logits = model(tokens)
        torch.set_default_device("meta")
        assert torch.ones(1).device.type == "meta"
        torch.set_default_device(None)
        assert torch.ones(1).device.type == "cpu"
        loss = compute_loss(logits, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert train(tmp_path / "record", update)[0] == train(None, update)[0]
    check_chain(read_operations(tmp_path / "record"))


def test_passes_without_a_loss_are_no_part(tmp_path: Path) -> None:
    """A script may evaluate first, and may drop a forward pass."""

    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, _ = draw_batch()
        with torch.no_grad():
            model(tokens).sum()
        model(tokens).exp()
        return update_by_hand(model, optimizer)

    assert train(tmp_path / "record", update)[0] == train(None, update)[0]
    trace = read_operations(tmp_path / "record")
    check_chain(trace)
    assert len(trace["operations"]) == 14
    assert "exp" not in list_names(trace)


def test_error_of_the_observer_does_not_reach_the_script(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no number")

    monkeypatch.setattr("torch_impl.record.operation_tracer.measure_tensor", fail)
    assert train(tmp_path / "record")[0] == train(None)[0]
    facts = read_facts(tmp_path / "record")
    assert facts["complete"]
    assert "operations: they are not recorded, because of an error of the recorder: no number" in facts["not_recorded"]
    assert not (tmp_path / "record" / "operations.json").exists()
    assert not _get_current_function_mode_stack()


def test_compiled_loss_is_not_observed(tmp_path: Path) -> None:
    """The compiler would compile the mode, too."""
    loss = torch.compile(compute_loss, backend="eager")

    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, labels = draw_batch()
        optimizer.zero_grad()
        value: torch.Tensor = loss(model(tokens), labels)
        value.backward()
        optimizer.step()
        return value.detach()

    assert train(tmp_path / "record", update)[0] == train(None, update)[0]
    assert open_record(tmp_path / "record").ranks[0].operations is None
    assert any("torch.compile compiles a function" in note for note in read_facts(tmp_path / "record")["not_recorded"])


@pytest.mark.parametrize(
    "compute", [lambda rows, labels: (rows.sum(-1) - labels).square().sum(), functional.cross_entropy]
)
def test_operations_within_a_transformation_are_missing(compute: Any, tmp_path: Path) -> None:
    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, labels = draw_batch()
        optimizer.zero_grad()
        loss = torch.vmap(compute)(model(tokens), labels).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert train(tmp_path / "record", update)[0] == train(None, update)[0]
    assert not read_operations(tmp_path / "record")["complete"]
    assert any("some are not listed" in sentence for sentence in read_facts(tmp_path / "record")["not_recorded"])


@pytest.mark.parametrize("is_earlier", [True, False])
def test_only_results_that_were_computed_since_the_list_began_are_missing(is_earlier: bool, tmp_path: Path) -> None:
    """The loss receives the output of another model, with a gradient, which comes from before or after the pass."""
    tutor = nn.Linear(20, 20)

    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, _ = draw_batch()
        codes = functional.one_hot(tokens, 20).float()
        optimizer.zero_grad()
        targets = torch.vmap(tutor)(codes) if is_earlier else None
        scores = model(tokens)
        loss = (scores - (torch.vmap(tutor)(codes) if targets is None else targets)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    train(tmp_path, update)
    trace, notes = read_operations(tmp_path), read_facts(tmp_path)["not_recorded"]
    assert trace["complete"] == is_earlier
    assert any("some are not listed" in sentence for sentence in notes) != is_earlier
    assert list_names(trace)[-3:] == ["sub", "square", "mean"]
    assert find(trace, "sub")["inputs"][0] == trace["names"]["layer/head/output"]


def test_frozen_transformer_computes_as_without_the_recorder(tmp_path: Path) -> None:
    """PyTorch computes an attention in another way if it sees a mode."""
    layer = nn.TransformerEncoderLayer(20, 2, 16, batch_first=True)
    teacher = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    outputs = []

    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, _ = draw_batch()
        optimizer.zero_grad()
        logits = model(tokens)
        with torch.no_grad():
            outputs.append(teacher(torch.ones(2, 5, 20).cumsum(-1)))
        assert torch.overrides.has_torch_function((logits,)) == (len(outputs) == 1)
        loss = logits.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    train(tmp_path / "record", update)
    check_chain(read_operations(tmp_path / "record"))
    assert all(torch.equal(output, outputs[-1]) for output in outputs)


class Hooked(nn.Module):
    """Passes on what a hook of the script has kept and computed, as extractors of features do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.hidden: list[torch.Tensor] = []
        self.embedding.register_forward_hook(lambda module, args, returned: self.hidden.append(returned * 2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.embedding(tokens)
        return self.head(self.hidden.pop())


def test_the_operations_of_a_hook_of_the_script_are_listed(tmp_path: Path) -> None:
    train(tmp_path, update_by_hand, Hooked)
    trace = read_operations(tmp_path)
    check_chain(trace)
    assert list_names(trace)[:3] == ["Embedding", "mul", "Linear"]
