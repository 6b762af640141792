"""A training script in NumPy that records itself: two linear layers with ReLU between, and SGD, Adam or AdamW.

Its records stand for those of PyTorch and of Keras. A test plants a mistake by overriding a value or a method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import log_softmax, softmax

from common.recording.clip_factors import find_factor
from common.recording.record_format import FORMAT, Environment, LayerFacts, OptimizerFacts, StepFacts
from common.recording.record_writer import RecordWriter

Arrays = dict[str, np.ndarray]
FEATURES, UNITS, CLASSES, EXAMPLES, STEPS = 5, 8, 3, 12, 3
KERAS_NAMES = {
    "fc1.weight": "fc1/kernel", "fc1.bias": "fc1/bias", "fc2.weight": "fc2/kernel", "fc2.bias": "fc2/bias",
}  # fmt: skip
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def draw_weights(seed: int = 0) -> Arrays:
    """Draw the initial weights in PyTorch's layout."""
    stream = np.random.default_rng(seed)
    shapes = {
        "fc1.weight": (UNITS, FEATURES), "fc1.bias": (UNITS,), "fc2.weight": (CLASSES, UNITS), "fc2.bias": (CLASSES,)
    }  # fmt: skip
    return {name: (0.5 * stream.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def draw_batches(seed: int = 0, examples: int = EXAMPLES, steps: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw the inputs [n, features] and the labels [n] of each step."""
    stream = np.random.default_rng(seed)
    return [
        (stream.standard_normal((examples, FEATURES)).astype(np.float32), stream.integers(CLASSES, size=examples))
        for _ in range(steps)
    ]


@dataclass
class NumpyScript:
    """A script and its settings."""

    framework: str = "torch"
    optimizer: str = "adamw"
    rate: float = 0.01
    rates: Sequence[float] | None = None  # of each step; None: `rate`
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 0.01
    undecayed: tuple[str, ...] = ()  # parameters in a second group without weight decay
    frozen: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    max_norm: float | None = None
    smoothing: float = 0.0
    micro_batches: int = 1
    ranks: int = 1
    dtype: str = "float32"
    weights: Arrays = field(default_factory=draw_weights)
    batches: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=draw_batches)
    flags: dict[str, object] = field(default_factory=dict)
    loss_arguments: dict[str, object] = field(default_factory=dict)
    training: bool = True
    extra_layers: tuple[LayerFacts, ...] = ()
    format: int = FORMAT  # of the record

    # What a mistake may change

    def activate(self, x: np.ndarray) -> np.ndarray:
        """Compute the activation between the layers."""
        return np.maximum(x, 0)

    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss, and its gradient by the outputs."""
        target = np.eye(CLASSES)[labels] * (1 - self.smoothing) + self.smoothing / CLASSES
        loss = -(target * log_softmax(outputs.astype(np.float64), 1)).sum(1).mean()
        return float(loss), (softmax(outputs.astype(np.float64), 1) - target) / len(labels)

    def accumulate(self, gradients: Sequence[Arrays]) -> Arrays:
        """Return the gradient of a step of one rank from those of its micro-batches."""
        return {name: np.mean([gradient[name] for gradient in gradients], axis=0) for name in gradients[0]}

    def reduce(self, local: Sequence[Arrays]) -> Arrays:
        """Return the gradient of a step from those of the ranks."""
        return {name: np.mean([gradient[name] for gradient in local], axis=0) for name in local[0]}

    def clip(self, gradients: Arrays) -> Arrays:
        """Clip by the norm of all gradients."""
        if self.max_norm is None:
            return gradients
        norm = float(np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values())))
        factor = min(1.0, self.max_norm / (norm + 1e-6))
        return {name: gradient * factor for name, gradient in gradients.items()}

    def change_gradients(self, step: int, gradients: Arrays) -> Arrays:
        """Change the gradients that the optimizer receives."""
        return gradients

    def find_rate(self, step: int) -> float:
        """Return the rate that the update uses."""
        return self.rate if self.rates is None else self.rates[step - 1]

    def find_decay(self, name: str) -> float:
        """Return the weight decay of a parameter that the update uses."""
        return 0.0 if name in self.undecayed else self.decay

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        """Update weights and slots in place."""
        rate = self.find_rate(step)
        for name, gradient in gradients.items():
            weight, decay = weights[name].astype(np.float64), self.find_decay(name)
            if self.optimizer == "sgd":
                gradient = gradient + decay * weight
                if self.momentum:
                    old = slots.get(f"{name}/momentum_buffer", np.zeros_like(weight))
                    slots[f"{name}/momentum_buffer"] = buffer = self.momentum * old + gradient
                    gradient = gradient + self.momentum * buffer if self.nesterov else buffer
                change = -rate * gradient
            else:
                change = self._update_adam(step, name, weight, slots, gradient, decay)
            weights[name] = (weight + change).astype(weights[name].dtype)

    def _update_adam(
        self, step: int, name: str, weight: np.ndarray, slots: Arrays, gradient: np.ndarray, decay: float
    ) -> np.ndarray:
        beta1, beta2 = self.betas
        if self.optimizer == "adam":
            gradient = gradient + decay * weight
        first = beta1 * slots.get(f"{name}/exp_avg", np.zeros_like(weight)) + (1 - beta1) * gradient
        second = beta2 * slots.get(f"{name}/exp_avg_sq", np.zeros_like(weight)) + (1 - beta2) * gradient**2
        slots[f"{name}/exp_avg"], slots[f"{name}/exp_avg_sq"] = first, second
        correction1, correction2 = 1 - beta1**step, 1 - beta2**step
        if self.framework == "torch":
            direction = first / correction1 / (np.sqrt(second / correction2) + self.epsilon)
        else:
            direction = first / correction1 / ((np.sqrt(second) + self.epsilon) / np.sqrt(correction2))
        decoupled = decay * weight if self.optimizer == "adamw" else 0.0
        return np.asarray(-self.find_rate(step) * (direction + decoupled))

    # The run and its record

    def forward(self, weights: Arrays, x: np.ndarray) -> Arrays:
        """Return what the layers receive and return, by the names of a record."""
        hidden = (x @ weights["fc1.weight"].T + weights["fc1.bias"]).astype(self.dtype)
        active = self.activate(hidden).astype(self.dtype)
        outputs = (active @ weights["fc2.weight"].T + weights["fc2.bias"]).astype(self.dtype)
        return {"fc1/input": x, "fc1/output": hidden, "fc2/input": active, "fc2/output": outputs}

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        """Return the gradients of the parameters."""
        hidden_gradient = (outputs_gradient @ weights["fc2.weight"]) * (calls["fc1/output"] > 0)
        gradients = {
            "fc1.weight": hidden_gradient.T @ calls["fc1/input"],
            "fc1.bias": hidden_gradient.sum(0),
            "fc2.weight": outputs_gradient.T @ calls["fc2/input"],
            "fc2.bias": outputs_gradient.sum(0),
        }
        return {name: gradient.astype(self.dtype) for name, gradient in gradients.items() if name not in self.frozen}

    def write(self, directory: Path) -> Path:
        """Train, and write the record. Return its directory."""
        environment: Environment = {"versions": {"python": "3.11"}, "device": "cpu", "flags": self.flags}
        writers = [
            RecordWriter(str(directory), self.framework, environment, rank, self.ranks) for rank in range(self.ranks)
        ]
        weights, slots = dict(self.weights), Arrays()
        for writer in writers:
            self._describe(writer)
            writer.write_start(self._name_state(weights, slots))
        for step, (inputs, labels) in enumerate(self.batches, start=1):
            shards = [(inputs[rank :: self.ranks], labels[rank :: self.ranks]) for rank in range(self.ranks)]
            computed = [self._compute_rank(weights, *shard) for shard in shards]
            reduced = self.change_gradients(step, self.reduce([gradients for _, gradients, _ in computed]))
            received = self.clip(reduced)
            updated = {name: gradient for name, gradient in received.items() if name not in self.missing}
            self.update(step, weights, slots, updated)
            for writer, (arrays, local, losses) in zip(writers, computed, strict=True):
                facts = self._build_facts(step, losses)
                has_all = self.format == 1 or step == 1
                stored = arrays | self._name("gradient", received) | self._name_state(weights, slots if has_all else {})
                if self.max_norm is not None:
                    stored |= self._name_unclipped(facts, reduced, received)
                if self.ranks > 1 and has_all:
                    stored |= self._name("gradient_local", local)
                writer.write_step(facts, stored)
        for writer in writers:
            writer.close(complete=True)
        return directory

    def _name_unclipped(self, facts: StepFacts, reduced: Arrays, received: Arrays) -> Arrays:
        """Return the gradients before clipping that no factor explains, and add the factors to the facts."""
        if self.format == 1:
            return self._name("gradient_unclipped", reduced)
        factors = {name: find_factor(array, received[name]) for name, array in reduced.items()}
        facts["clip_factors"] = {self.rename(name): factor for name, factor in factors.items() if factor is not None}
        return self._name("gradient_unclipped", {name: reduced[name] for name in reduced if factors[name] is None})

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        return {
            "step": step, "micro_batches": self.micro_batches, "losses": losses,
            "rates": [self.find_rate(step)] * (2 if self.undecayed else 1), "loss_scale": None, "skipped": False,
            "max_norm": self.max_norm,
        }  # fmt: skip

    def _compute_rank(
        self, weights: Arrays, inputs: np.ndarray, labels: np.ndarray
    ) -> tuple[Arrays, Arrays, list[float | None]]:
        """Return the arrays of the record, the gradients and the losses of one rank."""
        arrays, gradients, losses = Arrays(), [], list[float | None]()
        parts = zip(np.array_split(inputs, self.micro_batches), np.array_split(labels, self.micro_batches), strict=True)
        for number, (x, y) in enumerate(parts):
            calls = self.forward(weights, x)
            loss, outputs_gradient = self.compute_loss(calls["fc2/output"], y)
            gradients.append(self.backward(weights, calls, outputs_gradient))
            losses.append(loss)
            arrays |= {f"batch/{number}/input/0": x, f"batch/{number}/label/0": y}
            arrays |= {f"batch/{number}/output/0": calls["fc2/output"]}
            if number == 0:
                arrays |= {f"layer/{name}": array for name, array in calls.items()}
        return arrays, self.accumulate(gradients), losses

    def rename(self, name: str) -> str:
        """Return the name of a parameter in the framework."""
        return name if self.framework == "torch" else KERAS_NAMES[name]

    def convert(self, array: np.ndarray) -> np.ndarray:
        """Return a parameter in the layout of the framework."""
        return array if self.framework == "torch" else array.T

    def _name(self, prefix: str, arrays: Arrays) -> Arrays:
        converted = {name: self.convert(array).astype(self.dtype) for name, array in arrays.items()}
        return {f"{prefix}/{self.rename(name)}": array for name, array in converted.items()}

    def _name_state(self, weights: Arrays, slots: Arrays) -> Arrays:
        state, aliases = self._name("weight", weights), {"exp_avg": "momentum", "exp_avg_sq": "velocity"}
        for key, array in slots.items():
            name, slot = key.split("/")
            if self.framework != "torch":
                array = -self.rate * array if slot == "momentum_buffer" else array  # Keras includes the rate
                slot = aliases.get(slot, "momentum")
            state[f"slot/{self.rename(name)}/{slot}"] = self.convert(array).astype(self.dtype)
        return state

    def _describe(self, writer: RecordWriter) -> None:
        is_torch = self.framework == "torch"
        roles = ("weight", "bias") if is_torch else ("kernel", "bias")
        layers: list[LayerFacts] = [
            {
                "kind": "Linear" if is_torch else "Dense", "path": path, "attributes": {},
                "variables": {role: f"{path}{'.' if is_torch else '/'}{role}" for role in roles},
                "unflattened_shape": None, "composite": None, "training": self.training,
            }
            for path in ("fc1", "fc2")
        ]  # fmt: skip
        writer.facts["format"] = self.format
        writer.facts["model"] = {
            "name": "Net",
            "layers": [*layers, *self.extra_layers],
            "variables": {
                self.rename(name): {
                    "shape": list(self.convert(array).shape), "dtype": self.dtype, "trainable": name not in self.frozen
                }
                for name, array in self.weights.items()
            },
            "tied": [],
        }  # fmt: skip
        writer.facts["optimizer"] = self._describe_optimizer()
        name = "cross_entropy" if is_torch else "keras.losses.SparseCategoricalCrossentropy"
        arguments: dict[str, object] = {"reduction": "mean"} if is_torch else {"from_logits": True}
        writer.facts["loss"] = {"name": name, "arguments": arguments | self.loss_arguments}

    def _describe_optimizer(self) -> OptimizerFacts:
        is_torch = self.framework == "torch"
        values: dict[str, object] = {"lr" if is_torch else "learning_rate": self.rate, "weight_decay": self.decay}
        if self.optimizer == "sgd":
            values |= {"momentum": self.momentum, "nesterov": self.nesterov}
        else:
            betas = (
                {"betas": list(self.betas)} if is_torch else dict(zip(("beta_1", "beta_2"), self.betas, strict=True))
            )
            values |= {**betas, "eps" if is_torch else "epsilon": self.epsilon, "amsgrad": False}
        trained = [name for name in self.weights if name not in (*self.frozen, *self.missing)]
        groups = [([name for name in trained if name not in self.undecayed], values)]
        if self.undecayed:
            groups.append(([name for name in trained if name in self.undecayed], values | {"weight_decay": 0.0}))
        name = OPTIMIZERS[self.optimizer]
        return {
            "name": f"torch.optim.{self.optimizer}.{name}" if is_torch else f"keras.optimizers.{name}",
            "groups": [
                {"parameters": [self.rename(name) for name in names], "hyperparameters": dict(hyperparameters)}
                for names, hyperparameters in groups
            ],
            "missing": [self.rename(name) for name in self.missing],
            "frozen": [self.rename(name) for name in self.frozen],
        }
