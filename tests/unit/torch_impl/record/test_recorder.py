"""Tests of the recorder: any loop trains as without it, what it cannot see is named, and nothing of it is left."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.torch_impl.record.scripts import (
    Tagger,
    build_adam,
    compute_loss,
    draw_batch,
    list_functions,
    list_leftovers,
    read_facts,
    read_step,
    read_unclipped,
    train,
    update,
)
from torch_impl.record import Recorder


def step(model: Any, optimizer: Any, loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def update_with_inner_loss(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()
    return step(model, optimizer, model(tokens, labels=labels)["loss"])


def update_with_own_loss(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()
    return step(model, optimizer, -model(tokens).log_softmax(-1).gather(-1, labels[..., None]).mean())


def update_with_two_calls(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, _ = draw_batch()
    return step(model, optimizer, functional.mse_loss(model(tokens), model(tokens.flip(0))))


def update_with_layers(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()
    return step(model, optimizer, compute_loss(model.head(model.norm(model.embedding(tokens))), labels))


def update_after_an_evaluation(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()
    model.eval()
    compute_loss(model(tokens), labels)  # as in scripts that forget no_grad
    model.train()
    return update(model, optimizer)


def update_without_backward(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()
    loss = compute_loss(model(tokens), labels)
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss.detach()


def update_in_closure(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        loss = compute_loss(model(tokens), labels)
        loss.backward()
        return loss

    loss: torch.Tensor = optimizer.step(compute)
    return loss.detach()


def freeze(build_model: Callable[[], Tagger]) -> Tagger:
    model = build_model()
    model.embedding.weight.requires_grad_(False)
    return model


def build_groups(model: Tagger) -> torch.optim.Optimizer:
    groups = [{"params": [model.layer.weight], "lr": 0.1}, {"params": [model.layer.bias], "weight_decay": 0.1}]
    return torch.optim.SGD(groups, lr=0.01, momentum=0.9)


def build_lbfgs(model: Tagger) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), max_iter=3)


def build_fused(model: Tagger) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), fused=True)


def build_sparse() -> Tagger:
    model = Tagger()
    model.embedding = nn.Embedding(20, 8, sparse=True)
    return model


def build_sgd(model: Tagger) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


OWN_LOSS = "loss function: the script computes the loss without one of torch.nn.functional; what it combines with"


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        pytest.param({}, [], id="plain"),
        pytest.param({"update_model": update_with_inner_loss}, [], id="loss in the model"),
        pytest.param({"update_model": update_with_own_loss}, [OWN_LOSS], id="own loss"),
        pytest.param(
            {"update_model": update_with_two_calls},
            ["layers: the script calls the model 2 times before a backward pass"],
            id="two calls",
        ),
        pytest.param(
            {"update_model": update_with_layers},
            ["inputs and outputs: the script calls layers of the model (embedding, norm, head) instead of the model"],
            id="layers",
        ),
        pytest.param({"update_model": update_after_an_evaluation}, [], id="evaluation with gradients"),
        pytest.param(
            {"update_model": update_without_backward},
            [f"step {number}: the optimizer stepped without a backward pass of the model" for number in (1, 2, 3)],
            id="no backward",
        ),
        pytest.param({"update_model": update_in_closure}, [], id="closure"),
        pytest.param(
            {"update_model": update_in_closure, "build_optimizer": build_lbfgs},
            ["gradients: the optimizer calls its closure several times in a step"],
            id="LBFGS",
        ),
        pytest.param({"build_model": lambda: Tagger(is_checkpointed=True)}, [], id="checkpointed layers"),
        pytest.param({"build_model": lambda: Tagger(is_tied=True)}, [], id="tied"),
        pytest.param({"build_model": lambda: freeze(Tagger), "build_optimizer": build_groups}, [], id="groups"),
        pytest.param({"build_optimizer": build_fused}, [], id="fused"),
        pytest.param({"build_model": build_sparse, "build_optimizer": build_sgd}, [], id="sparse"),
        pytest.param({"build_model": lambda: Tagger().bfloat16()}, [], id="bfloat16"),
        pytest.param({"steps": 1}, [], id="one step"),
        pytest.param({"max_bytes": 2000}, [], id="few bytes"),
    ],
)
def test_training_does_not_change_and_nothing_is_left(
    options: dict[str, Any], notes: list[str], tmp_path: Path
) -> None:
    functions = list_functions()
    losses, *_ = train(None, **{name: value for name, value in options.items() if name not in ("steps", "max_bytes")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded, model, optimizer = train(tmp_path, **options)
    assert recorded == losses
    assert list_leftovers(model, optimizer, functions) == []
    facts = read_facts(tmp_path)
    assert facts["complete"]
    assert len(facts["steps"]) == options.get("steps", 3)
    assert len(facts["not_recorded"]) == len(notes)
    assert all(sentence.startswith(note) for sentence, note in zip(facts["not_recorded"], notes, strict=True))
    recorded_losses = [losses for step in facts["steps"] for losses in step["losses"][:1]]
    assert recorded_losses in ([], losses[: len(recorded_losses)])
    assert read_step(tmp_path, 1).keys() > {"gradient/norm.weight", "weight/layer.weight"}


def test_an_update_follows_from_its_record(tmp_path: Path) -> None:
    train(tmp_path, build_optimizer=build_sgd)
    before, after = read_step(tmp_path, 1), read_step(tmp_path, 2)
    for name in (key.removeprefix("gradient/") for key in after if key.startswith("gradient/")):
        expected = before[f"weight/{name}"] - np.float32(0.1) * after[f"gradient/{name}"]
        np.testing.assert_allclose(after[f"weight/{name}"], expected, rtol=1e-6, atol=1e-8)


def test_layers_and_batches(tmp_path: Path) -> None:
    train(tmp_path)
    facts, tensors = read_facts(tmp_path), read_step(tmp_path, 1)
    paths = ["model", "embedding", "layer", "norm", "dropout", "head"]
    assert [layer["path"] for layer in facts["model"]["layers"]] == paths
    aliases = facts["aliases"]["step-00000001.safetensors"]
    assert aliases["layer/embedding/input"] == "batch/0/input/0"
    assert aliases["layer/head/output"] == "batch/0/output/0"
    assert "layer/norm/input" in tensors  # the in-place activation changed the output of the layer before it
    assert np.array_equal(tensors["layer/norm/input"], np.maximum(tensors["layer/layer/output"], 0))
    assert tensors["batch/0/label/target"].shape == (20,)
    assert facts["loss"]["arguments"]["ignore_index"] == 3
    assert not any(name.startswith("layer/") for name in read_step(tmp_path, 2))


def test_micro_batches_and_clipping(tmp_path: Path) -> None:
    def accumulate(model: Any, optimizer: Any) -> torch.Tensor:
        losses = []
        for _ in range(2):
            tokens, labels = draw_batch()
            losses.append(compute_loss(model(tokens), labels) / 2)
            losses[-1].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).sum().detach()

    losses, *_ = train(tmp_path, update_model=accumulate)
    facts, tensors = read_facts(tmp_path), read_step(tmp_path, 1)
    assert [len(step["losses"]) for step in facts["steps"]] == [2, 2, 2]
    assert sum(facts["steps"][0]["losses"]) == pytest.approx(losses[0])
    assert facts["steps"][0]["max_norm"] == 0.1
    assert {"batch/0/input/0", "batch/1/input/0", "batch/1/label/target", "batch/1/output/0"} <= tensors.keys()
    names = [key.removeprefix("gradient/") for key in tensors if key.startswith("gradient/")]
    unclipped = read_unclipped(tmp_path, 1)
    assert unclipped.keys() == set(names)
    clipped_norm = np.sqrt(sum(np.sum(tensors[f"gradient/{name}"] ** 2) for name in names))
    assert clipped_norm == pytest.approx(0.1, rel=1e-4)
    assert np.sqrt(sum(np.sum(array**2) for array in unclipped.values())) > 0.2


@pytest.mark.parametrize("build_optimizer", [build_adam, build_fused])
def test_gradient_scaler(build_optimizer: Callable[[Any], torch.optim.Optimizer], tmp_path: Path) -> None:
    scales = iter([1.0, float("inf"), 1.0, 1.0, 1.0] * 2)
    scalers = iter([scaler for scaler in map(lambda _: torch.amp.GradScaler("cpu", init_scale=1000.0), range(2))])

    def train_scaled(directory: Path | None) -> list[float]:
        scaler = next(scalers)

        def update_scaled(model: Any, optimizer: Any) -> torch.Tensor:
            tokens, labels = draw_batch()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = compute_loss(model(tokens), labels)
            optimizer.zero_grad()
            scaler.scale(loss * next(scales)).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return train(directory, update_model=update_scaled, build_optimizer=build_optimizer)[0]

    losses = train_scaled(None)
    assert train_scaled(tmp_path) == losses
    facts, tensors = read_facts(tmp_path), read_step(tmp_path, 1)
    assert [step["skipped"] for step in facts["steps"]] == [False, True, False]
    assert [step["loss_scale"] for step in facts["steps"]] == [1000, 1000, 500]
    assert facts["steps"][0]["losses"] == [pytest.approx(losses[0])]
    assert facts["environment"]["flags"]["autocast"] == "bfloat16"
    assert not any(name.startswith("gradient_unclipped") for name in tensors)
    assert np.abs(tensors["gradient/head.weight"]).max() < 1  # divided by the scale
    skipped = read_step(tmp_path, 2)
    assert all(np.array_equal(tensors[name], skipped[name]) for name in tensors if name.startswith("weight/"))


def test_parameters_outside_the_optimizer(tmp_path: Path) -> None:
    train(tmp_path, build_model=lambda: freeze(Tagger), build_optimizer=build_groups)
    facts = read_facts(tmp_path)["optimizer"]
    assert facts["frozen"] == ["embedding.weight"]
    assert set(facts["missing"]) == {"norm.weight", "norm.bias", "head.weight", "unused.weight", "unused.bias"}
    assert [group["parameters"] for group in facts["groups"]] == [["layer.weight"], ["layer.bias"]]
    assert [group["hyperparameters"]["lr"] for group in facts["groups"]] == [0.1, 0.01]


@pytest.mark.parametrize("steps", [True, False])
def test_a_scheduler_is_seen_when_it_steps(steps: bool, tmp_path: Path) -> None:
    schedulers: list[Any] = []

    def build_scheduled(model: Any) -> torch.optim.Optimizer:
        optimizer = build_adam(model)
        schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
        return optimizer

    def update_scheduled(model: Any, optimizer: Any) -> torch.Tensor:
        loss = update(model, optimizer)
        if steps:
            schedulers[-1].step()
        return loss

    train(tmp_path, update_model=update_scheduled, build_optimizer=build_scheduled)
    facts = read_facts(tmp_path)
    expected = {
        "name": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.5, "base_lrs": [0.01], "last_epoch": 2
    }  # fmt: skip
    assert facts["scheduler"] == (expected if steps else None)
    assert [note[:10] for note in facts["not_recorded"]] == ([] if steps else ["scheduler:"])
    assert [step["rates"][0] for step in facts["steps"]] == ([0.01, 0.005, 0.0025] if steps else [0.01] * 3)


def test_a_script_that_ends_early(tmp_path: Path) -> None:
    functions = list_functions()
    model = Tagger()
    optimizer = build_adam(model)
    recorder = Recorder(str(tmp_path), model, optimizer)
    update(model, optimizer)
    recorder.close()  # as at the exit of the interpreter
    recorder.close()
    assert list_leftovers(model, optimizer, functions) == []
    facts = read_facts(tmp_path)
    assert (facts["complete"], len(facts["steps"])) == (False, 1)
    with pytest.warns(RuntimeWarning, match="saw no step"):
        Recorder(str(tmp_path), model, optimizer).close()
    assert "the recorder saw no step of the optimizer" in read_facts(tmp_path)["not_recorded"][0]


def test_an_error_of_the_recorder_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("slot")

    functions = list_functions()
    monkeypatch.setattr("torch_impl.record.step_observer.read_rates", fail)
    with pytest.warns(RuntimeWarning, match="the record ends in step 1, and the training goes on: KeyError: 'slot'"):
        losses, model, optimizer = train(tmp_path)
    assert losses == train(None)[0]
    assert list_leftovers(model, optimizer, functions) == []
    assert not read_facts(tmp_path)["complete"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda model: (1, build_adam(model)), "model: must be a torch.nn.Module, not int"),
        (lambda model: (model, model), "optimizer: must be a torch.optim.Optimizer, not Tagger"),
        (lambda model: (model, build_adam(Tagger())), "optimizer: updates none of the model's parameters"),
        (lambda model: (model, build_adam(model), 0), "steps=0: must be a number of optimizer steps, at least 1"),
    ],
)
def test_wrong_arguments(arguments: Callable[[Any], tuple[Any, ...]], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Recorder(str(tmp_path / "record"), *arguments(Tagger()))
    assert not (tmp_path / "record").exists()


def test_calls_of_a_model_that_is_frozen_for_them_are_no_part_of_its_step(tmp_path: Path) -> None:
    """The generator of a GAN is trained through the discriminator before that updates."""
    generator, discriminator = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(discriminator.parameters(), 0.1)
    Recorder(str(tmp_path), discriminator, optimizer, steps=1)
    images = generator(torch.ones(5, 3))
    functional.mse_loss(discriminator(images.detach()), torch.zeros(5, 1)).backward()
    discriminator.requires_grad_(False)
    functional.mse_loss(discriminator(images), torch.ones(5, 1)).backward()
    discriminator.requires_grad_(True)
    optimizer.step()
    assert read_facts(tmp_path)["steps"][0]["calls"] == [1]


def test_a_layer_has_the_layers_from_whose_outputs_its_input_is_computed(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third, self.last = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = self.first(x), self.second(x)
            gated = torch.sigmoid(first) * second[:, [1, 0, 3, 2]]
            return self.last(gated + self.third(first.detach()))

    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    Recorder(str(tmp_path), model, optimizer, steps=1)
    step(model, optimizer, model(torch.ones(2, 4)).square().mean())
    layers = {layer["path"]: layer.get("sources") for layer in read_facts(tmp_path)["model"]["layers"]}
    assert layers["last"] == ["first", "second", "third"]
    assert layers["first"] is layers["second"] is layers["third"] is None


@pytest.mark.parametrize("is_generator", [True, False])
def test_a_clipping_belongs_to_the_model_whose_gradients_it_clips(is_generator: bool, tmp_path: Path) -> None:
    models = {name: nn.Linear(3, 2) for name in ("actor", "critic")}
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.1) for name, model in models.items()}
    for name, model in models.items():
        Recorder(str(tmp_path / name), model, optimizers[name], steps=2)
    for _ in range(2):
        for name, model in models.items():
            optimizers[name].zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            if name == "critic":
                clipped = model.parameters() if is_generator else [*model.parameters()]
                nn.utils.clip_grad_norm_(clipped, 0.5)
            optimizers[name].step()
    norms = {name: [facts["max_norm"] for facts in read_facts(tmp_path / name)["steps"]] for name in models}
    assert norms == {"actor": [None, None], "critic": [0.5, 0.5]}
