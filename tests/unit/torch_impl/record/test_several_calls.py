"""Scripts that call a model several times in a step, and scripts with several recorders."""

import contextlib
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn import functional

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.recorded.walk import diagnose_records
from tests.unit.torch_impl.record.scripts import list_functions, list_leftovers, read_facts, read_step
from torch_impl.record import Recorder
from torch_impl.record.graph import Mark

Views = tuple[torch.Tensor, torch.Tensor]
LossFunction = Callable[[nn.Module, torch.Tensor, torch.Tensor], list[torch.Tensor]]


def draw_views(step: int) -> Views:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator)


def build_encoder() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))


def call_twice(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [functional.mse_loss(model(x), torch.ones(8, 1)) + functional.mse_loss(model(y), torch.zeros(8, 1))]


def call_in_other_order(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    fake = functional.mse_loss(model(y), torch.zeros(8, 1))
    return [fake + functional.mse_loss(model(x), torch.ones(8, 1))]


def call_joined(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    labels = torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])
    return [2 * functional.mse_loss(model(torch.cat([x, y])), labels)]


def differentiate_twice(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [functional.mse_loss(model(x), torch.ones(8, 1)), functional.mse_loss(model(y), torch.zeros(8, 1))]


def call_scaled(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return call_twice(model, x, y * 255)


def call_with_one_view(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return call_twice(model, x, x)


def call_once(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        model(y)
    return [functional.mse_loss(model(x), torch.ones(8, 1))]


def call_with_smoothed_labels(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [functional.mse_loss(model(x), torch.full((8, 1), 0.9)) + functional.mse_loss(model(y), torch.zeros(8, 1))]


def call_in_other_modes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    real = functional.mse_loss(model(x), torch.ones(8, 1))
    fake = functional.mse_loss(model.eval()(y), torch.zeros(8, 1))
    model.train()
    return [real + fake]


def call_with_other_pairs(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return call_twice(model, x, y.flip(0))


def record(directory: Path, compute_losses: LossFunction, **options: Any) -> Path:
    model = build_encoder()
    if compute_losses in (call_joined, differentiate_twice, call_in_other_order):
        model[1] = nn.Identity()  # BatchNorm tells the calls apart
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(str(directory), model, optimizer, **options)
    batches = [draw_views(step) for step in range(3)]
    for x, y in recorder.batches(batches) if options else batches:
        optimizer.zero_grad()
        for loss in compute_losses(model, x, y):
            loss.backward()
        optimizer.step()
    return directory


def diagnose(tmp_path: Path, a: LossFunction, b: LossFunction) -> Diagnosis:
    return diagnose_records(record(tmp_path / "a", a), record(tmp_path / "b", b))


def test_every_call_on_which_the_loss_depends_is_recorded(tmp_path: Path) -> None:
    record(tmp_path / "twice", call_twice)
    arrays, views = read_step(tmp_path / "twice", 1), draw_views(0)
    for name, view in zip(("batch/0/input/0", "batch/0/call/1/input/0"), views, strict=True):
        assert (arrays[name] == view.numpy()).all()
    assert arrays["batch/0/call/1/output/0"].shape == (8, 1)
    assert {"batch/0/label/target", "batch/0/label/target.1"} <= {*arrays, *read_facts(tmp_path / "twice")["aliases"]}
    record(tmp_path / "once", call_once)
    assert not [name for name in read_step(tmp_path / "once", 1) if "/call/" in name]


def change_record(directory: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the arrays of the first step of a record, as a stranger might."""
    file = directory / "step-00000001.safetensors"
    arrays = load_file(file)
    change(arrays)
    save_file(arrays, file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda arrays: arrays.pop("batch/0/call/1/output/0"),
            "the first of 2 calls of the model in B ({}, torch) returns other outputs (0) than another call",
        ),
        (
            lambda arrays: arrays.update({"batch/0/call/1/output/0": arrays["batch/0/call/1/output/0"][:3].copy()}),
            "the 2 calls of the model in B ({}, torch) do not return one row for each example",
        ),
    ],
    ids=["no outputs", "too few rows"],
)
def test_outputs_that_some_calls_lack_are_not_compared(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], object], words: str
) -> None:
    a, b = record(tmp_path / "a", call_twice), record(tmp_path / "b", call_twice)
    assert diagnose_records(a, b).is_equal
    change_record(b, change)
    diagnosis = diagnose_records(a, b)
    assert not diagnosis.is_equal
    assert words.format(b) in diagnosis.headline


def test_many_calls_of_a_damaged_record_are_counted_in_little_time(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", call_twice), record(tmp_path / "b", call_twice)
    change_record(
        b, lambda arrays: arrays.update({f"batch/0/call/{k}/input/0": np.zeros((1, 4)) for k in range(2, 400)})
    )
    assert not diagnose_records(a, b).is_equal


def test_inputs_of_zeros_are_no_scaled_inputs(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", call_twice), record(tmp_path / "b", call_twice)
    change_record(a, lambda arrays: arrays.update({"batch/0/call/1/input/0": np.zeros((8, 4), np.float32)}))
    assert not diagnose_records(a, b).is_equal


def test_calls_of_other_sizes_are_no_pairs(tmp_path: Path) -> None:
    """A script may call its model on a few labelled and on many other examples."""

    def call_on_fewer(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [functional.mse_loss(model(x), torch.ones(8, 1)) + functional.mse_loss(model(y[:5]), torch.zeros(5, 1))]

    diagnosis = diagnose(tmp_path, call_on_fewer, call_on_fewer)
    assert diagnosis.is_equal, diagnosis.headline


def test_many_calls_are_recorded_and_those_of_an_evaluation_with_gradients_are_not(tmp_path: Path) -> None:
    calls = 40

    def call_often(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        references = [weakref.ref(functional.mse_loss(model(x), y[:, :1])) for _ in range(calls)]
        assert not any(reference() for reference in references)
        return [sum((functional.mse_loss(model(x + number), y[:, :1]) for number in range(calls)), torch.zeros(()))]

    record(tmp_path, call_often)
    assert read_facts(tmp_path)["steps"][0]["calls"] == [calls]
    arrays = read_step(tmp_path, 1)
    inputs = [arrays[f"batch/0/call/{call}/input/0"] for call in range(1, calls)]
    assert np.allclose(inputs - arrays["batch/0/input/0"], np.arange(1, calls)[:, None, None], atol=1e-5)
    aliases = read_facts(tmp_path)["aliases"]["step-00000001.safetensors"]
    assert f"batch/0/label/target.{calls}" not in {*arrays, *aliases}


def test_a_graph_that_the_script_drops_is_not_kept(tmp_path: Path) -> None:
    model = build_encoder()
    recorder = Recorder(str(tmp_path), model, torch.optim.SGD(model.parameters(), lr=0.1))
    outputs = model(draw_views(0)[0])
    node = outputs.grad_fn.next_functions[0][0]
    mark = Mark()
    node.metadata["test"] = mark  # lives as long as the node
    reference = weakref.ref(mark)
    del outputs, node, mark
    assert reference() is None
    recorder.close()


def forget_calls(directory: Path) -> None:
    """Make a record as recorders wrote it that recorded the first call of a model only."""

    def forget(arrays: dict[str, np.ndarray]) -> None:
        for name in [name for name in arrays if "/call/" in name]:
            del arrays[name]

    change_record(directory, forget)
    facts = read_facts(directory)
    for step in facts["steps"]:
        del step["calls"]
    (directory / "record.json").write_text(json.dumps(facts))


def test_calls_are_not_compared_with_a_record_that_does_not_say_their_number(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", call_twice), record(tmp_path / "b", call_twice)
    forget_calls(a)
    for pair in ((a, b), (b, a)):
        diagnosis = diagnose_records(*pair)
        assert not diagnosis.causes
        assert f"({a}, torch) does not say how often its script calls the model" in diagnosis.headline


def label_some(wrong: int | None = None, count: int = 3) -> LossFunction:
    """Return a loss function that has a second loss for some examples. wrong: the example with another label."""

    def compute(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        outputs, labels = model(x), torch.arange(float(count))[:, None]
        if wrong is not None:
            labels[wrong] = 7
        return [functional.mse_loss(outputs, y[:, :1]) + functional.l1_loss(outputs[:count], labels)]

    return compute


@pytest.mark.parametrize(
    ("other", "is_equal", "words"),
    [
        (label_some(), True, "no difference"),
        (label_some(wrong=1), False, "loss: B also computes setitem(index=[1], 7) in test_several_calls.py:"),
        (label_some(count=2), False, "loss"),
    ],
)
def test_labels_of_some_examples_are_compared(other: Any, is_equal: bool, words: str, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, label_some(), other)
    assert diagnosis.is_equal == is_equal
    assert words in diagnosis.headline


def test_labels_of_some_examples_in_another_order_are_named_as_not_compared(tmp_path: Path) -> None:
    def flip(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        outputs = model(x.flip(0))
        some = functional.l1_loss(outputs.flip(0)[:3], torch.arange(3.0)[:, None])
        return [functional.mse_loss(outputs, y[:, :1].flip(0)) + some]

    diagnosis = diagnose(tmp_path, label_some(), flip)
    assert not diagnosis.causes
    assert "labels (target.1, target) that have no row for each example" in diagnosis.headline


def test_layers_without_common_examples_do_not_count_as_compared(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, differentiate_twice, call_in_other_order)
    (stage,) = [stage for stage in diagnosis.stages if stage.name == "activations"]
    assert [check.tensor for check in stage.checks] == ["output 0"]
    assert "have no examples in common" in stage.note


@pytest.mark.parametrize("other", [call_joined, differentiate_twice, call_in_other_order])
def test_the_same_examples_in_other_calls_are_the_same(other: Any, tmp_path: Path) -> None:
    plain = diagnose(tmp_path, differentiate_twice, other)
    assert plain.is_equal, plain.headline


@pytest.mark.parametrize(
    ("other", "cause", "sentence"),
    [
        (call_scaled, "scaled_inputs", "input 0 of the second of 2 calls of the model of B is 255 times A's"),
        (
            call_with_one_view,
            "other_inputs_of_call",
            "receives the examples of the first of 2 calls",
        ),
        (call_once, "number_of_calls", "B 1 time, not counting calls that are detached"),
        (call_with_smoothed_labels, "made_labels", "the first of 2 calls of the model is 1 in A and 0.9 in B"),
        (call_in_other_modes, "output_of_call", "the second of 2 calls of the model returns other values"),
        (call_with_other_pairs, "order_between_calls", "the second of 2 calls of the model receives its examples in"),
    ],
)
def test_the_call_that_differs_is_named(other: Any, cause: str, sentence: str, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, call_twice, other)
    assert not diagnosis.is_equal
    assert diagnosis.causes[0].cause == cause
    assert sentence in diagnosis.causes[0].sentence


@pytest.mark.parametrize("hides_labels", [False, True])
def test_a_target_network_that_moves_in_another_way_is_located(hides_labels: bool, tmp_path: Path) -> None:
    def compute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((torch.sub(outputs, targets) if hides_labels else outputs - targets) ** 2).mean()

    def train(directory: Path, share: float) -> Path:
        online, target = build_encoder(), build_encoder()
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        Recorder(str(directory), online, optimizer)
        for step in range(3):
            x, y = draw_views(step)
            optimizer.zero_grad()
            slow_outputs = target(y).detach(), target(x).detach()
            loss = torch.stack([compute_error(online(view), z) for view, z in zip((x, y), slow_outputs, strict=True)])
            loss = loss.sum()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.lerp_(fast, share)
        return directory

    diagnosis = diagnose_records(train(tmp_path / "a", 0.01), train(tmp_path / "b", 0.5))
    assert [cause.cause for cause in diagnosis.causes] == ["other_state_of_loss"]
    same = diagnose_records(tmp_path / "a", train(tmp_path / "c", 0.01))
    assert same.is_equal, same.headline


def test_a_script_that_follows_gets_the_inputs_of_each_call(tmp_path: Path) -> None:
    record(tmp_path / "a", call_twice)
    model = build_encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(str(tmp_path / "b"), model, optimizer, follow=str(tmp_path / "a"))
    own = [(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(3)]
    for step, batch in enumerate(recorder.batches(own)):
        assert all(torch.equal(x, view) for x, view in zip(batch, draw_views(step), strict=True))
        optimizer.zero_grad()
        call_twice(model, *batch)[0].backward()
        optimizer.step()
    assert diagnose_records(tmp_path / "a", tmp_path / "b").is_equal
    (note,) = [note for note in read_facts(tmp_path / "b")["not_recorded"] if note.startswith("batches")]
    assert note.endswith("1 gets input (call 2) 0; check this")


def test_recorders_that_end_in_any_order_leave_nothing_behind(tmp_path: Path) -> None:
    functions = list_functions()
    models = [build_encoder(), build_encoder()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for name, model, optimizer in zip("ab", models, optimizers, strict=True):
        Recorder(str(tmp_path / name), model, optimizer, steps=2)
    for step in range(6):
        for model, optimizer, period in zip(models, optimizers, (1, 3), strict=True):  # the first recorder ends first
            if step % period == 0:
                optimizer.zero_grad()
                call_twice(model, *draw_views(step))[0].backward()
                optimizer.step()
    for name, model, optimizer in zip("ab", models, optimizers, strict=True):
        assert read_facts(tmp_path / name)["complete"]
        assert list_leftovers(model, optimizer, functions) == []


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.flatten(outputs), targets)


@pytest.mark.parametrize("loss_function", [nn.MSELoss(), nn.MSELoss(reduction="none"), OwnLoss()])
def test_a_loss_function_in_an_attribute_of_the_model_is_no_call_of_it(loss_function: Any, tmp_path: Path) -> None:
    model = build_encoder()
    model.register_module("criterion", loss_function)
    model.forward = lambda x: nn.Sequential(*list(model)[:4])(x)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer)
    for step in range(3):
        x, y = draw_views(step)
        optimizer.zero_grad()
        loss_function(model(x), y[:, :1]).mean().backward()
        optimizer.step()
    facts = read_facts(tmp_path)
    assert [step["calls"] for step in facts["steps"]] == [[1]] * 3
    assert not any("criterion" in layer["path"] for layer in facts["model"]["layers"])


class Classifier(nn.Module):
    """A model that computes its own loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(x)
        return {"loss": functional.cross_entropy(logits, y), "logits": logits}


def test_a_model_in_an_attribute_that_returns_its_loss_is_called(tmp_path: Path) -> None:
    """A Lightning module calls a model of transformers in this way."""
    model = nn.ModuleDict({"model": Classifier()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Recorder(str(tmp_path), model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model["model"](torch.ones(4, 6), torch.tensor([0, 1, 2, 0]))["loss"].backward()
        optimizer.step()
    facts = read_facts(tmp_path)
    assert [step["calls"] for step in facts["steps"]] == [[1]] * 3
    assert any(layer["path"] == "model.head" for layer in facts["model"]["layers"])


@pytest.mark.parametrize(
    ("margin", "exchange", "cause"),
    [(0.5, False, ""), (0.2, False, "loss_function"), (0.5, True, "order_between_calls")],
)
def test_a_triplet_loss_of_the_script_s_own(margin: float, exchange: bool, cause: str, tmp_path: Path) -> None:
    def build_loss(margin: float, exchange: bool) -> LossFunction:
        def compute(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            others = (x.flip(1), y) if exchange else (y, x.flip(1))
            anchor, positive, negative = (model(views) for views in (x, *others))
            distances = ((anchor - views).pow(2).sum(1) for views in (positive, negative))
            near, far = distances
            return [functional.relu(near - far + margin).mean()]

        return compute

    diagnosis = diagnose(tmp_path, build_loss(0.5, exchange=False), build_loss(margin, exchange))
    assert [entry.cause for entry in diagnosis.causes] == ([cause] if cause else []), diagnosis.headline
    if cause == "loss_function":
        assert "with the margin 0.5, mean; that of B" in diagnosis.causes[0].sentence


def test_a_call_whose_gradient_enters_the_loss_is_recorded(tmp_path: Path) -> None:
    """A gradient penalty depends on a call of the model, though not on its outputs."""
    critic = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    Recorder(str(tmp_path), critic, optimizer, steps=1)
    inputs = torch.randn(6, 3, requires_grad=True)
    (slopes,) = torch.autograd.grad(critic(inputs).sum(), inputs, create_graph=True)
    loss = critic(torch.randn(6, 3)).mean() + ((slopes.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    optimizer.step()
    assert read_facts(tmp_path)["steps"][0]["calls"] == [2]
    assert (read_step(tmp_path, 1)["batch/0/input/0"] == inputs.detach().numpy()).all()


@pytest.mark.parametrize("is_detached", [True, False])
def test_a_call_without_gradient_whose_output_enters_the_loss_is_named(is_detached: bool, tmp_path: Path) -> None:
    def combine(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [functional.mse_loss(model(x) * model(y), torch.ones(8, 1))]

    def combine_without_gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        outputs = model(x)
        with contextlib.nullcontext() if is_detached else torch.no_grad():
            others = model(y).detach()
        return [functional.mse_loss(outputs * others, torch.ones(8, 1))]

    (cause,) = diagnose(tmp_path, combine, combine_without_gradient).causes
    assert (cause.cause, cause.side, cause.confirmed) == ("stopped_gradient", "b", True)
    assert "the second of 2 calls of the model has no gradient in B" in cause.sentence
    assert "test_several_calls.py:" in cause.sentence
