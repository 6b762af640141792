"""Reference implementation of PyTorch's optimizers in NumPy float64. It trains a very small model.

Both sides must compute the same updates. The model is dense(embedding(ids)) and its loss is sum(upstream * output), so
the gradients are short formulas. Ids are repeated within a batch and over the batches, and some rows of the embedding
have no gradient.

Formulas: the documentation of torch.optim.SGD, Adam and AdamW, and of torch.nn.utils.clip_grad_norm_.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from omegaconf import DictConfig, OmegaConf

from common.config.parameter_groups import GroupSettings, assign_groups
from common.config.schema import Config
from common.training.optimizer_rules import build_rule
from common.training.schedule import compute_learning_rate, find_update_settings

Arrays = dict[str, np.ndarray]
Batch = tuple[np.ndarray, np.ndarray]  # ids int32 [4, 5] and upstream float64 [4, 5, 2]

STEPS, HALF, AHEAD = 20, 10, 3
SHAPES = {"embedding.weight": (24, 3), "dense.weight": (2, 3), "dense.bias": (2,)}  # in PyTorch's layout
# Bounds of the norm of a difference, relative to the norm of the expected array.
TOLERANCES = {"float64": 1e-12, "float32": 2e-6}

SGD = ("optimizer=sgd", "optimizer.learning_rate=0.5")
# Epsilon is large, so that float32 shows at which place it is added.
ADAM = ("optimizer.learning_rate=0.02", "optimizer.epsilon=2e-5")
OPTIMIZERS = {
    "sgd": SGD,
    "sgd without momentum": (*SGD, "optimizer.momentum=null"),
    "adam": ("optimizer=adam", *ADAM, "optimizer.beta1=0.998"),  # 1 - 0.998 is 1e-5 off in float32
    "adamw": ("optimizer=adamw", *ADAM),
}
KERAS = "optimizer.semantics=keras"
LAYOUTS = "+optimizer.keras_layouts={dense.weight: transpose 1 0}"
NATIVE_KEYS = {"rmsprop": ("optimizer.momentum=0.5", "optimizer.centered=true")}  # of optimizers with `native`
# Optimizers that no fused operation of TensorFlow computes. Their reference is the rule that both sides share, which
# tests/unit/common/training/test_optimizer_rules.py compares with the optimizers of PyTorch and Keras.
RULED = {
    "nesterov": (*SGD, "optimizer.nesterov=true"),
    "dampened": (*SGD, "optimizer.dampening=0.3"),
    "amsgrad": ("optimizer=adamw", *ADAM, "optimizer.amsgrad=true"),
    "rmsprop": ("optimizer=rmsprop", "optimizer.centered=true", "optimizer.momentum=0.5", "optimizer.epsilon=1e-4"),
    "adagrad": ("optimizer=adagrad",),
    "adadelta": ("optimizer=adadelta",),
    "adamax": ("optimizer=adamax",),
    "nadam": ("optimizer=nadam",),
    "adafactor": ("optimizer=adafactor", "optimizer.epsilon=1e-4", "optimizer.learning_rate=0.5"),
    "muon": ("optimizer=muon", "optimizer.adamw_match='embed*'"),
    "cycled": ("optimizer=adamax", "schedule=one_cycle", "schedule.cycle_momentum=true"),
    "keras sgd": (*SGD, KERAS),
    "keras adamw": ("optimizer=adamw", *ADAM, KERAS),
    "keras rmsprop": ("optimizer=rmsprop", KERAS),
    "keras adagrad": ("optimizer=adagrad", KERAS),
    "keras adafactor": ("optimizer=adafactor", "optimizer.epsilon=1e-6", "optimizer.learning_rate=0.5", KERAS, LAYOUTS),
    "keras muon": ("optimizer=muon", "optimizer.adamw_match='embed*'", KERAS, LAYOUTS),
}
VARIANTS = {
    "plain": ("optimizer.max_grad_norm=null", "schedule=constant"),
    "clipped with warm-up": ("optimizer.max_grad_norm=0.08", "schedule=linear", "schedule.warmup_steps=5"),
}
CASES = {
    f"{precision}, {name}, {variant}": (
        *OPTIMIZERS[name],
        *VARIANTS[variant],
        "optimizer.weight_decay=0.01",
        f"schedule.total_steps={STEPS + 5}",
        f"train.precision={precision}",
    )
    for precision in TOLERANCES
    for name in OPTIMIZERS
    for variant in VARIANTS
    if (name, variant) != ("sgd without momentum", "clipped with warm-up")
}

CLIPPING = ("optimizer.max_grad_norm=0.08", "optimizer.clip_norm=0.05", "optimizer.clip_value=0.01")
CASES |= {
    f"float64, {name}, {(clipping := CLIPPING[index % 3]).partition('=')[0]}": (
        *overrides,
        "optimizer.max_grad_norm=null",
        clipping,
        "schedule.warmup_steps=5",
        f"schedule.total_steps={STEPS + 5}",
        "optimizer.weight_decay=0.01",
        "optimizer.groups=[{match: '*.bias', weight_decay: 0}, {match: 'embed*', learning_rate_scale: 0.5}]",
        "train.precision=float64",
    )
    for index, (name, overrides) in enumerate(RULED.items())
}


def initial_parameters() -> Arrays:
    """Return the initial parameters, float32 values in float64 arrays."""
    stream = np.random.default_rng(1)
    return {name: stream.normal(0, 0.5, shape).astype(np.float32).astype(float) for name, shape in SHAPES.items()}


def batches(repeated: bool = True) -> list[Batch]:
    """Return the batches of steps 1 to STEPS. Some gradient norms are above the clipping norm, others below."""
    stream = np.random.default_rng(2)
    ids = [stream.choice(20, (4, 5), repeated).astype(np.int32) for _ in range(STEPS)]
    scales = np.where(np.arange(STEPS) % 3 == 0, 0.002, 0.02)  # small, so that clip_grad_norm_'s 1e-6 shows in float32
    upstream = [stream.normal(0, scale, (4, 5, 2)).astype(np.float32).astype(float) for scale in scales]
    return list(zip(ids, upstream, strict=True))


def summed_rows(ids: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the gradient of an embedding, in which the rows of equal ids are added."""
    gradient = np.zeros((count, rows.shape[-1]))
    np.add.at(gradient, ids.reshape(-1), rows.reshape(-1, rows.shape[-1]))
    return gradient


@dataclass
class Reference:
    """Optimizers with the formulas of PyTorch.

    Attributes:
        ahead: The number of updates beyond the number of steps. Adam's bias correction counts them too.
    """

    config: Config
    parameters: Arrays = field(default_factory=initial_parameters)
    slots: Arrays = field(default_factory=dict)
    ahead: int = 0

    def train(self, batches: Sequence[Batch], first: int = 1) -> list[float]:
        """Train on the batches. Return the gradient norm of every step."""
        return [self.update(first + index, self.gradients(*batch)) for index, batch in enumerate(batches)]

    def gradients(self, ids: np.ndarray, upstream: np.ndarray) -> Arrays:
        embedding, dense = self.parameters["embedding.weight"], self.parameters["dense.weight"]
        return {
            "embedding.weight": summed_rows(ids, upstream @ dense, len(embedding)),
            "dense.weight": np.einsum("bso,bsi->oi", upstream, embedding[ids]),
            "dense.bias": upstream.sum((0, 1)),
        }

    def update(self, step: int, gradients: Arrays) -> float:
        settings, rate = self.config.optimizer, compute_learning_rate(self.config, step)
        norm = float(np.sqrt(sum(np.square(gradient).sum() for gradient in gradients.values())))
        shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        groups = assign_groups(settings.groups, settings.weight_decay, shapes)
        for name, gradient in gradients.items():
            gradient, parameter = self.clip(gradient, norm), self.parameters[name]
            if settings.groups:
                self.follow_rule(name, gradient, groups[name], step)
                continue
            if settings.kind == "adamw":
                parameter = parameter * (1 - rate * settings.weight_decay)
            else:
                gradient = gradient + settings.weight_decay * parameter
            change = self.momentum if settings.kind == "sgd" else self.adam
            self.parameters[name] = parameter - rate * change(name, gradient, step + self.ahead)
        return norm

    def follow_rule(self, name: str, gradient: np.ndarray, group: GroupSettings, step: int) -> None:
        """Update a parameter and its slots by the rule of its optimizer."""
        settings = find_update_settings(self.config, step)
        rule, rate = build_rule(settings), compute_learning_rate(self.config, step) * group.learning_rate_scale
        shapes = settings.list_slots(name, gradient.shape)
        slots = [
            self.slots.get(f"{slot}.{name}", np.full(shape, settings.initial_slot_value))
            for slot, shape in shapes.items()
        ]
        scalars = rule.compute_scalars(rate, group.weight_decay, step + self.ahead)
        layout = settings.find_layout(name)
        change, after = rule.compute(np, self.parameters[name], gradient, slots, scalars, layout)
        self.parameters[name] = self.parameters[name] + change
        self.slots |= {f"{slot}.{name}": array for slot, array in zip(shapes, after, strict=True)}

    def clip(self, gradient: np.ndarray, norm: float) -> np.ndarray:
        settings = self.config.optimizer
        if settings.clip_value is not None:
            return np.clip(gradient, -settings.clip_value, settings.clip_value)
        if settings.clip_norm is not None:
            return gradient * self.scale(float(np.linalg.norm(gradient)), settings.clip_norm)
        return gradient * self.scale(norm, settings.max_grad_norm)

    def scale(self, norm: float, largest: float | None) -> float:
        if largest is None:
            return 1.0
        return (
            largest / max(norm, largest)
            if self.config.optimizer.semantics == "keras"
            else min(1.0, largest / (norm + 1e-6))
        )

    def momentum(self, name: str, gradient: np.ndarray, update: int) -> np.ndarray:
        if not self.config.optimizer.momentum:
            return gradient
        return self.average("momentum_buffer", name, self.config.optimizer.momentum, gradient, 1.0)

    def adam(self, name: str, gradient: np.ndarray, update: int) -> np.ndarray:
        settings = self.config.optimizer
        assert settings.beta1 is not None and settings.beta2 is not None
        first = self.average("exp_avg", name, settings.beta1, gradient, 1 - settings.beta1)
        second = self.average("exp_avg_sq", name, settings.beta2, gradient**2, 1 - settings.beta2)
        return first / (1 - settings.beta1**update) / self.denominator(second, 1 - settings.beta2**update)

    def denominator(self, second: np.ndarray, correction: float) -> np.ndarray:
        return np.sqrt(second / correction) + self.config.optimizer.epsilon

    def average(self, slot: str, name: str, keep: float, value: np.ndarray, share: float) -> np.ndarray:
        average = keep * self.slots.get(f"{slot}.{name}", 0.0) + share * value
        self.slots[f"{slot}.{name}"] = average
        return average


def expected(config: Config, ahead: int = 0, kind: type[Reference] = Reference, repeated: bool = True) -> Arrays:
    """Return `norms` [STEPS], and the parameters and slots after the last step.

    `ahead` applies from the middle of training.
    """
    reference, data = kind(config), batches(repeated)
    norms = reference.train(data[:HALF])
    reference.ahead = ahead
    norms += reference.train(data[HALF:], HALF + 1)
    return {"norms": np.array(norms), **reference.parameters, **reference.slots}


def errors(actual: Mapping[str, np.ndarray], expected: Arrays) -> dict[str, float]:
    """Return the error of each array, relative to the norm of the expected array."""
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].shape == array.shape, name
    return {
        name: float(np.linalg.norm(actual[name] - array) / np.linalg.norm(array)) for name, array in expected.items()
    }


class ClipsWithoutSmallNumber(Reference):
    def scale(self, norm: float, largest: float | None) -> float:
        return 1.0 if largest is None else min(1.0, largest / norm)


class EpsilonHat(Reference):
    """Adam that adds epsilon before the bias correction, as Keras and TensorFlow do."""

    def denominator(self, second: np.ndarray, correction: float) -> np.ndarray:
        return (np.sqrt(second) + self.config.optimizer.epsilon) / np.sqrt(correction)


class LastOfRepeatedRows(Reference):
    def gradients(self, ids: np.ndarray, upstream: np.ndarray) -> Arrays:
        gradients = super().gradients(ids, upstream)
        gradients["embedding.weight"][ids] = upstream @ self.parameters["dense.weight"]
        return gradients


class ScheduleOneStepLate(Reference):
    def update(self, step: int, gradients: Arrays) -> float:
        self.ahead = 1  # this keeps the bias correction correct
        return super().update(step - 1, gradients)


def changed(composed: DictConfig, override: str) -> DictConfig:
    """Return a composed config with one more override, or none. Composing it again would take longer."""
    merged = OmegaConf.merge(composed, OmegaConf.from_dotlist([override] if override else []))
    assert isinstance(merged, DictConfig)
    return merged


FAULTS: list[tuple[str, type[Reference], str]] = [  # optimizer, faulty reference, override; tests must detect each
    ("sgd", ClipsWithoutSmallNumber, ""),
    ("sgd", LastOfRepeatedRows, ""),
    ("adam", LastOfRepeatedRows, ""),
    ("adam", EpsilonHat, ""),
    ("adamw", EpsilonHat, ""),
    ("adamw", ScheduleOneStepLate, ""),
    *[
        (name, Reference, f"optimizer.{override}")
        for name, overrides in {
            "sgd": ("momentum=0.9001", "weight_decay=0.0101", "max_grad_norm=0.0801", "learning_rate=0.501"),
            "adam": ("beta1=0.9001", "beta2=0.99901", "epsilon=2.01e-5", "weight_decay=0.0101", "kind=adamw"),
            "adamw": ("beta1=0.9001", "beta2=0.99901", "epsilon=2.01e-5", "weight_decay=0.0101", "kind=adam"),
        }.items()
        for override in overrides
    ],
]
