"""Tests of the update rules against the optimizers of PyTorch and Keras, on one parameter in float64."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.layout_optimizers import AdafactorSettings, MuonSettings
from common.config.optimizer_settings import OptimizerSettings
from common.config.optimizers import (
    AdadeltaSettings,
    AdagradSettings,
    AdamaxSettings,
    AdamSettings,
    NadamSettings,
    RmspropSettings,
    SgdSettings,
)
from common.training.optimizer_rules import build_rule
from tests.conftest import Python

STEPS = 20
Rates = list[float]
# Keras rounds constants to float32, so those here are exact in it.
BETAS, EPSILON, RHO, DECAY = (0.875, 0.96875), 2**-10, 0.9375, 2**-5


FACTORED: dict[str, object] = {
    "epsilon2": 2**-8,
    "beta2_decay": -0.75,
    "clip_threshold": 1.25,
    "keras_layouts": {},
}
MUON: dict[str, object] = {
    "nesterov": True,
    "ns_steps": 5,
    "ns_epsilon": 1e-7,
    "rate_adjustment": None,
    "adamw_match": "embed*",
    "momentum": 0.875,
    "keras_layouts": {},
}


def make_settings(kind: str, semantics: str, **options: object) -> OptimizerSettings:
    """Return the settings of an optimizer, with values for the keys that its kind needs."""
    schemas: dict[str, tuple[type[OptimizerSettings], dict[str, object]]] = {
        "sgd": (SgdSettings, {"nesterov": False, "dampening": 0.0}),
        "adam": (AdamSettings, {"amsgrad": False}),
        "adamw": (AdamSettings, {"amsgrad": False}),
        "rmsprop": (RmspropSettings, {"rho": RHO, "centered": False}),
        "adagrad": (AdagradSettings, {"initial_accumulator": None}),
        "adadelta": (AdadeltaSettings, {"rho": RHO}),
        "adamax": (AdamaxSettings, {}),
        "nadam": (NadamSettings, {"momentum_decay": None}),
        "adafactor": (AdafactorSettings, FACTORED),
    }
    schemas["muon"] = (MuonSettings, MUON)
    schema, values = schemas[kind]
    common: dict[str, object] = {
        "learning_rate": 0.1,
        "weight_decay": DECAY,
        "max_grad_norm": None,
        "clip_norm": None,
        "clip_value": None,
        "groups": [],
        "momentum": None,
        "beta1": BETAS[0],
        "beta2": BETAS[1],
        "epsilon": EPSILON,
    }
    return schema(kind=kind, semantics=semantics, **{**common, **values, **options})  # type: ignore[arg-type]


def make_gradients(seed: int = 0, shape: tuple[int, ...] = (4,)) -> np.ndarray:
    """Return gradients [STEPS, *shape]. One element of the parameter gets zeros."""
    gradients = np.random.default_rng(seed).normal(0, 0.1, (STEPS, math.prod(shape)))
    gradients[:, 3] = 0
    return gradients.reshape(STEPS, *shape)


def make_weight(gradients: np.ndarray) -> np.ndarray:
    """Return a parameter before the first update."""
    return np.linspace(-1, 1, gradients[0].size).reshape(gradients[0].shape)


def train_by_rule(settings: OptimizerSettings, gradients: np.ndarray, rates: Sequence[float]) -> np.ndarray:
    """Return the parameter after each update, [STEPS, ...]."""
    rule, weight = build_rule(settings), make_weight(gradients)
    slots = [
        np.full(shape, settings.initial_slot_value) for shape in settings.list_slots("weight", weight.shape).values()
    ]
    weights = []
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        scalars = rule.compute_scalars(rate, settings.weight_decay, step)
        assert len(scalars) == rule.scalar_count
        change, slots = rule.compute(np, weight, gradient, slots, scalars)
        weight = weight + change
        weights.append(weight)
    return np.array(weights)


def train_by_torch(build: Callable[..., torch.optim.Optimizer], gradients: np.ndarray, rates: Rates) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.from_numpy(make_weight(gradients)))
    optimizer = build([parameter], weight_decay=DECAY)
    weights = []
    for gradient, rate in zip(gradients, rates, strict=True):
        parameter.grad = torch.tensor(gradient)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        weights.append(parameter.detach().numpy().copy())
    return np.array(weights)


ADAM: dict[str, Any] = {"betas": BETAS, "eps": EPSILON}
ADAFACTOR: dict[str, Any] = {"eps": (EPSILON, 2**-8), "beta2_decay": -0.75, "d": 1.25}
TORCH: dict[str, tuple[str, dict[str, Any], Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": ("sgd", {}, torch.optim.SGD, {}),
    "momentum": ("sgd", {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "dampening": ("sgd", {"momentum": 0.9, "dampening": 0.3}, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    "nesterov": ("sgd", {"momentum": 0.9, "nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": ("adam", {}, torch.optim.Adam, ADAM),
    "amsgrad": ("adam", {"amsgrad": True}, torch.optim.Adam, {**ADAM, "amsgrad": True}),
    "adamw": ("adamw", {}, torch.optim.AdamW, ADAM),
    "rmsprop": ("rmsprop", {}, torch.optim.RMSprop, {"alpha": RHO, "eps": EPSILON}),
    "centered": (
        "rmsprop",
        {"centered": True, "momentum": 0.5},
        torch.optim.RMSprop,
        {"alpha": RHO, "eps": EPSILON, "centered": True, "momentum": 0.5},
    ),
    "adagrad": (
        "adagrad",
        {"initial_accumulator": 0.25},
        torch.optim.Adagrad,
        {"initial_accumulator_value": 0.25, "eps": EPSILON},
    ),
    "adadelta": ("adadelta", {}, torch.optim.Adadelta, {"rho": RHO, "eps": EPSILON}),
    "adamax": ("adamax", {}, torch.optim.Adamax, ADAM),
    "nadam": ("nadam", {}, torch.optim.NAdam, ADAM),
    "adafactor": ("adafactor", {}, torch.optim.Adafactor, ADAFACTOR),
    "muon of vectors": ("muon", {}, torch.optim.AdamW, ADAM),
}
RATES = st.lists(st.floats(0, 0.5), min_size=STEPS, max_size=STEPS)


@pytest.mark.parametrize("case", TORCH)
@settings(max_examples=20)
@given(rates=RATES, seed=st.integers(0, 99))
def test_aligned_rule_is_that_of_pytorch(case: str, rates: Rates, seed: int) -> None:
    kind, options, build, arguments = TORCH[case]
    chosen, gradients = make_settings(kind, "aligned", **options), make_gradients(seed)
    expected = train_by_torch(lambda *args, **kwargs: build(*args, **arguments, **kwargs), gradients, rates)
    # NAdam of PyTorch keeps the product of its momentums in float32.
    tolerance = 1e-6 if kind == "nadam" else 1e-12
    assert np.abs(train_by_rule(chosen, gradients, rates) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("shape", [(3, 5), (5, 1), (2, 3, 4), (4, 3, 2, 2)])
def test_adafactor_of_matrices_is_that_of_pytorch(shape: tuple[int, ...]) -> None:
    chosen, gradients = make_settings("adafactor", "aligned"), make_gradients(1, shape)
    rates = [0.5 / step for step in range(1, STEPS + 1)]
    expected = train_by_torch(partial(torch.optim.Adafactor, **ADAFACTOR), gradients, rates)
    assert np.abs(train_by_rule(chosen, gradients, rates) - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 1)])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
def test_muon_is_that_of_pytorch_without_bfloat16(
    shape: tuple[int, ...], nesterov: bool, adjustment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    chosen = make_settings("muon", "aligned", nesterov=nesterov, rate_adjustment=adjustment)
    gradients, rates = make_gradients(1, shape), [0.5 / step for step in range(1, STEPS + 1)]
    build = partial(torch.optim.Muon, momentum=0.875, nesterov=nesterov, adjust_lr_fn=adjustment)
    expected = train_by_torch(build, gradients, rates)
    assert np.abs(train_by_rule(chosen, gradients, rates) - expected).max() <= 1e-12 * np.abs(expected).max()


KERAS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "sgd": ("sgd", {}, "SGD", {}),
    "momentum": ("sgd", {"momentum": 0.875}, "SGD", {"momentum": 0.875}),
    "nesterov": ("sgd", {"momentum": 0.875, "nesterov": True}, "SGD", {"momentum": 0.875, "nesterov": True}),
    "adam": ("adam", {}, "Adam", {}),
    "amsgrad": ("adam", {"amsgrad": True}, "Adam", {"amsgrad": True}),
    "adamw": ("adamw", {}, "AdamW", {}),
    "rmsprop": ("rmsprop", {}, "RMSprop", {"rho": RHO}),
    "centered": (
        "rmsprop",
        {"centered": True, "momentum": 0.5},
        "RMSprop",
        {"rho": RHO, "centered": True, "momentum": 0.5},
    ),
    "adagrad": ("adagrad", {"initial_accumulator": 0.25}, "Adagrad", {"initial_accumulator_value": 0.25}),
    "adadelta": ("adadelta", {}, "Adadelta", {"rho": RHO}),
    "adamax": ("adamax", {}, "Adamax", {}),
    "nadam": ("nadam", {}, "Nadam", {}),
}
TRAIN = """
import json
import sys
import keras
import numpy as np

keras.config.set_floatx("float64")
cases, gradients, rates = json.loads(sys.argv[1])
results = {}
for case, (name, arguments) in cases.items():
    variable = keras.Variable(np.linspace(-1, 1, 4), dtype="float64")
    optimizer = getattr(keras.optimizers, name)(0.1, **arguments)
    optimizer.build([variable])
    results[case] = []
    for gradient, rate in zip(gradients, rates):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(np.array(gradient))])
        results[case].append(variable.numpy().tolist())
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def trained_by_keras(keras_python: Python) -> dict[str, list[list[float]]]:
    """Return the parameter after each update by Keras's optimizers."""
    moments = {"beta_1": BETAS[0], "beta_2": BETAS[1]}
    cases = {
        case: (
            name,
            {
                **arguments,
                "weight_decay": DECAY,
                **({} if name == "SGD" else {"epsilon": EPSILON}),
                **(moments if "beta" in name or name.lower().startswith(("adam", "nadam")) else {}),
            },
        )
        for case, (_, _, name, arguments) in KERAS.items()
    }
    results: dict[str, list[list[float]]] = json.loads(
        keras_python(TRAIN, json.dumps([cases, make_gradients().tolist(), KERAS_RATES]))
    )
    return results


KERAS_RATES = [0.5 / 2 ** (step % 4) for step in range(STEPS)]


@pytest.mark.slow
@pytest.mark.parametrize("case", KERAS)
def test_keras_rule_is_that_of_keras(trained_by_keras: dict[str, list[list[float]]], case: str) -> None:
    kind, options, _, _ = KERAS[case]
    weights = train_by_rule(make_settings(kind, "keras", **options), make_gradients(), KERAS_RATES)
    expected = np.array(trained_by_keras[case])
    # Nadam's 0.96 is a constant of Keras, which it rounds to float32.
    tolerance = 1e-7 if kind == "nadam" else 1e-12
    assert np.abs(weights - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("case", sorted({"rmsprop", "adagrad", "adamax", "adam", "nadam", "sgd"}))
def test_semantics_differ(case: str) -> None:
    options = {"momentum": 0.5} if case == "sgd" else {}
    rates = [0.1] * 10 + [0.01] * 10
    aligned, keras = (
        train_by_rule(make_settings(case, semantics, **options), make_gradients(), rates)
        for semantics in ("aligned", "keras")
    )
    assert np.abs(aligned - keras).max() > 1e-5
