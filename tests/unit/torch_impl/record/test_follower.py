"""Tests of following another record in PyTorch: what is refused, and what is left in the model."""

import copy
import json
import random
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from common.diagnose.recorded.walk import diagnose_records
from common.errors import UserError
from tests.unit.common.recording.numpy_script import NumpyScript
from torch_impl.record import Recorder
from torch_impl.record.follower import Follower, observe_layers

Batch = tuple[torch.Tensor, torch.Tensor]


def build(seed: int, outputs: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, outputs))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def draw(seed: int, count: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(6, 4, generator=generator), torch.randint(0, 2, (6,), generator=generator)) for _ in range(count)
    ]


@pytest.fixture
def old(tmp_path: Path) -> str:
    """Record a script, and return the directory."""
    model, optimizer = build(0)
    Recorder(str(tmp_path / "old"), model, optimizer)
    for features, labels in draw(0):
        optimizer.zero_grad()
        functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    return str(tmp_path / "old")


def test_the_loader_s_own_batches_follow_those_of_the_record(old: str, tmp_path: Path) -> None:
    model, optimizer = build(1)
    recorder = Recorder(str(tmp_path / "new"), model, optimizer, follow=old)
    torch.testing.assert_close(model.state_dict()["0.weight"], build(0)[0].state_dict()["0.weight"], rtol=0, atol=0)
    loader = draw(1, count=5)
    batches = recorder.batches(loader)
    taken = list(batches)
    for (features, labels), (expected, classes) in zip(taken, [*draw(0)[:3], *loader[3:]], strict=True):
        torch.testing.assert_close(features, expected, rtol=0, atol=0)
        torch.testing.assert_close(labels, classes, rtol=0, atol=0)
    assert len(batches) == 5  # type: ignore[arg-type]


def test_the_pass_that_shows_the_layers_leaves_no_trace() -> None:
    model, _ = build(0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    layers = observe_layers(model, model, (draw(0)[0][0],), {})
    assert [layer["kind"] for layer in layers] == ["Sequential", "Linear", "BatchNorm1d", "Dropout", "Linear"]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(np.random.get_state())) == states[1:]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"map": "map.yaml"}, "map=map.yaml: pairs the variables .*; pass follow= too"),
        ({"follow": "NEW"}, "this recorder writes its own record there"),
        ({"follow": "missing"}, "missing: no such directory"),
        ({"follow": "OLD", "map": "map.yaml"}, "both records are of one framework; remove it"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str], message: str, old: str, tmp_path: Path) -> None:
    places = {"OLD": old, "NEW": str(tmp_path / "new")}
    options: dict[str, Any] = {name: places.get(value, value) for name, value in arguments.items()}
    model, optimizer = build(1)
    with pytest.raises(ValueError, match=message):
        Recorder(str(tmp_path / "new"), model, optimizer, **options)
    assert not (tmp_path / "new").exists()


def test_a_model_that_does_not_fit_is_refused(old: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"3.weight: has the shape \[5, 3\], and \[2, 3\] in "):
        Recorder(str(tmp_path / "new"), *build(1, outputs=5), follow=old)
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(7, 1)))
    with pytest.raises(UserError, match="has no counterpart of any trained variable, such as 1.0.bias"):
        Recorder(str(tmp_path / "new"), model, torch.optim.SGD(model.parameters(), lr=0.1), follow=old)


def test_batches_without_a_record_to_follow_are_the_own_ones(tmp_path: Path) -> None:
    batches = draw(1)
    recorder, loader = Recorder(str(tmp_path / "new"), *build(1)), DataLoader(TensorDataset(torch.ones(3)))
    assert recorder.batches(loader) is loader
    observed = recorder.batches(batches)
    assert [*observed] == batches
    assert len(observed) == len(batches)  # type: ignore[arg-type]
    recorder.close()
    assert recorder.batches(batches) is batches


class CarryingModel(nn.Module):
    """A model with states in attributes and in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        self.count, self.lengths, self.table = 0, [1], np.zeros(2)
        self.layer = nn.Linear(4, 4)
        self.mean: torch.Tensor | None
        self.register_buffer("mean", None)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        returned: torch.Tensor = self.layer(features)
        self.hidden, self.mean = returned.detach(), returned.detach().mean(0)
        self.total = self.total + self.mean  # type: ignore[has-type]
        self.count += 1
        self.lengths.append(len(features))
        self.table += 1
        self.layer.cache = {"last": returned}  # type: ignore[assignment]
        return returned


def test_the_pass_that_shows_the_layers_restores_attributes() -> None:
    model = CarryingModel()
    lengths, table, total = model.lengths, model.table, model.total
    observe_layers(model, model, (draw(0)[0][0],), {})
    assert (model.hidden, model.mean, model.count) == (None, None, 0)
    assert model.lengths is lengths
    assert lengths == [1]
    assert model.table is table
    assert not table.any()
    assert model.total is total
    assert not total.any()
    assert not hasattr(model.layer, "cache")


class LazyModel(nn.Module):
    """A model that creates a layer when it is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.is_built, self.lazy = False, nn.LazyLinear(3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not self.is_built:
            self.head, self.is_built = nn.Linear(3, 2), True
        return self.head(self.lazy(features))


class MomentumEncoder(nn.Module):
    """Moves a frozen copy of its encoder in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.copy = nn.Linear(5, 3), nn.Linear(5, 3).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.copy.weight.mul_(0.9).add_(self.encoder.weight, alpha=0.1)
            self.copy.bias.data = self.copy.bias.data * 0.9
        return torch.as_tensor(self.encoder(x) - self.copy(x))


def test_the_pass_that_shows_the_layers_restores_frozen_weights() -> None:
    model = MomentumEncoder()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    observe_layers(model, model, (torch.zeros(2, 5),), {})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_modules_that_the_pass_builds_keep_their_attributes() -> None:
    model = LazyModel()
    observe_layers(model, model, (draw(0)[0][0],), {})
    assert model.is_built
    assert model.lazy.in_features == 4


class PartsModel(nn.Module):
    """A model whose layers are defined in another order than that of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc2, self.fc1 = nn.Linear(8, 3), nn.Linear(5, 8)


def call_parts(model: PartsModel, features: torch.Tensor) -> torch.Tensor:
    return model.fc2(functional.relu(model.fc1(features)))


def call_functions(model: PartsModel, features: torch.Tensor) -> torch.Tensor:
    hidden = functional.relu(functional.linear(features, model.fc1.weight, model.fc1.bias))
    return functional.linear(hidden, model.fc2.weight, model.fc2.bias)


def train_parts(compute: Callable[..., torch.Tensor], script: NumpyScript, old: Path, new: Path) -> None:
    model = PartsModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=script.rate, momentum=script.momentum)
    recorder = Recorder(str(new), model, optimizer, follow=str(old))
    for features, (_, labels) in zip(recorder.batches([torch.zeros(12, 5)] * 3), script.batches, strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(compute(model, features), torch.from_numpy(labels)).backward()
        optimizer.step()


def test_a_script_that_calls_layers_of_the_model_takes_the_weights_of_the_other_framework(tmp_path: Path) -> None:
    script = NumpyScript(framework="tensorflow", optimizer="sgd", decay=0.0)
    old = script.write(tmp_path / "old")
    train_parts(call_parts, script, old, tmp_path / "new")
    diagnosis = diagnose_records(old, tmp_path / "new")
    assert diagnosis.is_equal, diagnosis.headline
    notes = json.loads((tmp_path / "new" / "record.json").read_text())["not_recorded"]
    assert any("calls fc1 first and not the model: fc2 got weights in the order of definition" in x for x in notes)


def test_a_loader_of_a_trainer_returns_the_batches_of_the_record(tmp_path: Path) -> None:
    """The pass that shows the order of the layers takes no batch, and other loaders keep theirs."""
    script = NumpyScript(framework="tensorflow", optimizer="sgd", decay=0.0)
    zeros: Any = [(torch.zeros(12, 5), torch.zeros(12, dtype=torch.long))] * len(script.batches)
    loaders = [DataLoader(zeros, batch_size=None) for _ in range(2)]
    iterate = DataLoader.__iter__
    model = nn.Sequential(OrderedDict(fc1=nn.Linear(5, 8), relu=nn.ReLU(), fc2=nn.Linear(8, 3)))
    follower = Follower(str(script.write(tmp_path / "old")), None)
    follower.replace_batches(loaders[0])
    follower.follow(model)
    assert all(not features.any() for features, _ in loaders[1])
    for (features, labels), (expected, _) in zip(loaders[0], script.batches, strict=True):
        np.testing.assert_allclose(features.numpy(), expected, rtol=1e-6)
        functional.cross_entropy(model(features), labels).backward()
        follower.end_step()
    follower.close()
    assert DataLoader.__iter__ is iterate
    assert all(not features.any() for features, _ in loaders[0])


def test_a_frozen_copy_may_be_called_before_the_model(tmp_path: Path) -> None:
    script = NumpyScript(framework="tensorflow", optimizer="sgd", decay=0.0)
    model = nn.Sequential(OrderedDict(fc1=nn.Linear(5, 8), relu=nn.ReLU(), fc2=nn.Linear(8, 3)))
    target = copy.deepcopy(model).requires_grad_(False)
    follower = Follower(str(script.write(tmp_path / "old")), None)
    follower.follow(model)
    follower.replace_batch(script.batches[0])
    target(torch.zeros(12, 5))
    follower.close()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, target.get_parameter(name))


def test_a_script_that_trains_on_its_own_weights_is_refused(tmp_path: Path) -> None:
    script = NumpyScript(framework="tensorflow", optimizer="sgd", decay=0.0)
    old = script.write(tmp_path / "old")
    with pytest.raises(UserError, match="the model has not taken its weights"):
        train_parts(call_functions, script, old, tmp_path / "new")


def test_a_closure_takes_the_weights_of_the_other_framework_before_they_are_recorded(tmp_path: Path) -> None:
    script = NumpyScript(framework="tensorflow", optimizer="sgd", decay=0.0)
    old = script.write(tmp_path / "old")
    model = nn.Sequential(OrderedDict(fc1=nn.Linear(5, 8), relu=nn.ReLU(), fc2=nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=script.rate, momentum=script.momentum)
    recorder = Recorder(str(tmp_path / "new"), model, optimizer, follow=str(old))

    def compute_loss(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(features), labels)
        loss.backward()
        return loss

    batches = recorder.batches([torch.zeros(12, 5)] * 3)
    for features, (_, labels) in zip(batches, script.batches, strict=True):
        optimizer.step(partial(compute_loss, features, torch.from_numpy(labels)))  # as Lightning does
    diagnosis = diagnose_records(old, tmp_path / "new")
    assert diagnosis.is_equal, diagnosis.headline


def _train_episodes(directory: Path, follow: Path | None, weight: float = 1.0) -> None:
    """Train on episodes [n, ways, features], whose examples the script that follows joins before it calls the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
    stream = np.random.default_rng(0)
    episodes = torch.from_numpy(stream.normal(size=(12, 2, 3)).astype(np.float32))
    for (batch,) in recorder.batches(DataLoader(TensorDataset(episodes), batch_size=4)):
        outputs = model(batch) if follow is None else model(batch.flatten(0, 1))
        loss = weight * outputs.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_examples_that_only_one_script_joins_are_no_difference(tmp_path: Path) -> None:
    _train_episodes(tmp_path / "old", None)
    _train_episodes(tmp_path / "new", tmp_path / "old")
    diagnosis = diagnose_records(tmp_path / "old", tmp_path / "new")
    assert not diagnosis.causes, diagnosis.headline
    assert "the models get 4 examples in A and 8 in B" in diagnosis.headline
    _train_episodes(tmp_path / "mistaken", tmp_path / "old", weight=1.01)
    causes = diagnose_records(tmp_path / "old", tmp_path / "mistaken").causes
    assert [cause.cause for cause in causes] == ["batch_size"]


class Factors(nn.Module):
    """Factors of users and items, whose loss uses the weights before it calls a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(5, 3), nn.Embedding(5, 3)

    def compute_loss(self, ids: torch.Tensor) -> torch.Tensor:
        scores = self.users.weight @ self.items.weight.t()
        penalty = self.users(ids).square().sum() + self.items(ids).square().sum()
        return scores[ids].square().mean() + 0.1 * penalty


def test_weights_that_are_used_before_a_layer_is_called_are_those_of_the_record(tmp_path: Path) -> None:
    """Variables are paired by layers only if the record is one of TensorFlow."""
    losses: list[list[float]] = []
    for name, follow in (("old", None), ("new", str(tmp_path / "old"))):
        torch.manual_seed(len(losses))
        model = Factors()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        recorder = Recorder(str(tmp_path / name), model, optimizer, follow=follow)
        if follow is not None:
            assert recorder._follower is not None
            recorder._follower.close()
            recorder._follower._record.needs_layers = True
            with torch.no_grad():
                model.users.weight.zero_()
            recorder._follower.follow(model)
        losses.append([])
        for (ids,) in recorder.batches(DataLoader(TensorDataset(torch.randint(5, (12,))), 4)):
            optimizer.zero_grad()
            loss = model.compute_loss(ids)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_scripts_that_follow_name_the_arrays_of_their_batches(tmp_path: Path) -> None:
    """A script may train two models, each with a recorder through which the batches pass."""
    for seed, name in enumerate(("old", "new")):
        batches: Any = draw(seed, count=3)
        pairs = [build(seed + number) for number in range(2)]
        for number, pair in enumerate(pairs):
            follow = str(tmp_path / f"old_{number}") if name == "new" else None
            batches = Recorder(str(tmp_path / f"{name}_{number}"), *pair, follow=follow).batches(batches)
        for features, labels in batches:
            for model, optimizer in pairs:
                optimizer.zero_grad()
                functional.cross_entropy(model(features), labels).backward()
                optimizer.step()
        for number in range(2):
            facts = json.loads((tmp_path / f"{name}_{number}" / "record.json").read_text())
            assert [step["keys"] for step in facts["steps"]] == [{"input/0": "0", "label/target": "1"}] * 3
