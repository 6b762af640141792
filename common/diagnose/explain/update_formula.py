"""The stage of the optimizer: what an update makes of its gradients, by the formula that explains it.

The formulas are those of the documentation of torch.optim.SGD, Adam and AdamW, and of keras.optimizers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.config.schema import Config
from common.diagnose.explain.step_gradients import rounded
from common.diagnose.findings import Check, Stage
from common.diagnose.rounding import UNITS, at_least_float32
from common.training.schedule import compute_learning_rate

Arrays = Mapping[str, np.ndarray]
OFF = 1e-8  # relative to the norm of all updates: what a formula must reproduce; Keras computes scalars in float32
WEIGHT_UNITS, UPDATE_UNITS = 1, 20  # in which the rounding of a weight, and of an update's arithmetic, is bounded
PLACES = ("after the bias correction", "before the bias correction", "inside the root")  # of epsilon
MOST = 4  # changes of a formula that are sought
ROUNDED = 3e-6  # of native optimizers


@dataclass(frozen=True)
class Formula:
    """An update. decay: decoupled, by parameter. place: of epsilon."""

    kind: str
    rate: float
    epsilon: float = 0.0
    place: str = PLACES[0]
    corrected: bool = True
    decay: float = 0.0
    decays_vectors: bool = True
    words: str = ""
    cause: str = ""

    def update(self, weights: Arrays, slots: Arrays, betas: tuple[float, float], step: int) -> dict[str, np.ndarray]:
        """What is added to each weight. slots: after the update."""
        found = {}
        for name, weight in weights.items():
            decay = self.decay if self.decays_vectors or weight.ndim > 1 else 0.0
            if self.kind == "sgd":
                change = slots[f"momentum_buffer.{name}"]
            else:
                change = self._adam(slots[f"exp_avg.{name}"], slots[f"exp_avg_sq.{name}"], betas, step)
            found[name] = -self.rate * (change + decay * weight)
        return found

    def _adam(self, first: np.ndarray, second: np.ndarray, betas: tuple[float, float], step: int) -> np.ndarray:
        one, two = (1 - beta**step if self.corrected else 1.0 for beta in betas)
        if self.place == "before the bias correction":
            return np.asarray(first / one / ((np.sqrt(second) + self.epsilon) / np.sqrt(two)))
        if self.place == "inside the root":
            return np.asarray(first / one / np.sqrt(second / two + self.epsilon))
        return np.asarray(first / one / (np.sqrt(second / two) + self.epsilon))


@dataclass(frozen=True)
class Update:
    """One update of one side: weights and slots around it."""

    config: Config
    step: int
    replicas: int
    before: Arrays
    after: Arrays
    slots_before: Arrays
    slots: Arrays
    gradients: Arrays  # that it was made from, without weight decay

    @property
    def unit(self) -> float:
        """In the last place of weights and slots: in bfloat16 these are float32."""
        return UNITS[at_least_float32(self.config.train.precision)]


def compare_update(stage: Stage, side: str, update: Update) -> None:
    """The slots and the weights against the formula of the config."""
    _compare_second_moment(stage, side, update)
    names = [name for name, each in update.gradients.items() if name in update.before and each.any()]
    weights = {name: update.before[name] for name in names}
    seen = {name: update.after[name] - update.before[name] for name in names}
    formula, where = _of_config(update), f"{side.upper()}, step {update.step}"
    off, exact = _distance(formula, weights, update, seen), _exact(update, weights, seen)
    stage.checks.append(Check(f"{where}: update", off, exact / 100))
    if not stage.checks[-1].differs or any(each.side == side for each in stage.causes):
        return
    chosen = _search(formula, weights, update, seen, exact)
    for each in chosen:
        for cause in each.cause.split("+"):
            stage.blame(cause, side, "update", f"in {where}: {each.words}")
    if chosen:
        return
    still = [name for name in names if not seen[name].any() and update.gradients[name].any()]
    if still:
        stage.blame("not_updated", side, still[0], f"in {where}: {', '.join(still[:3])}: not updated")
        return
    stage.blame("optimizer", side, "update", f"in {where}: the update is {off:.1e} off the formula", confirmed=False)


def _compare_second_moment(stage: Stage, side: str, update: Update) -> None:
    settings = update.config.optimizer
    if settings.kind == "sgd" or settings.beta2 is None:
        return
    off, where = rounded(update.config, update.slots_before, update.slots), f"{side.upper()}, step {update.step}"
    for name, gradient in update.gradients.items():
        if settings.kind != "adamw":
            gradient = gradient + settings.weight_decay * update.before[name]
        seen = update.slots[f"exp_avg_sq.{name}"]
        last = update.slots_before.get(f"exp_avg_sq.{name}", np.zeros_like(seen))
        fresh = (seen - settings.beta2 * last) / (1 - settings.beta2)
        norm = max(float(np.linalg.norm(gradient**2)), 1e-12 * _largest(update))
        digits = 2 * update.unit * float(np.linalg.norm(seen) + np.linalg.norm(last)) / (1 - settings.beta2)
        digits += UPDATE_UNITS * off[name] * float(np.linalg.norm(gradient))
        exact = ROUNDED + digits / (norm or 1.0)
        check = Check(
            f"{where}: exp_avg_sq.{name}",
            float(np.linalg.norm(fresh - gradient**2)) / (norm or 1.0),
            exact / 100,
        )
        stage.checks.append(check)
        if not check.differs or any(each.side == side for each in stage.causes):
            continue
        rows = (
            np.abs(fresh - gradient**2).reshape(len(fresh), -1).max(1) > max(1e-6, exact) * float(np.abs(fresh).max())
            if fresh.ndim
            else [True]
        )
        factor = float((fresh * gradient**2).sum() / (gradient**4).sum()) if gradient.any() else 0.0
        if factor and np.allclose(fresh, factor * gradient**2, rtol=max(1e-5, exact), atol=0) and update.step == 1:
            beta = 1 - factor * (1 - settings.beta2)
            stage.blame(
                "beta2",
                side,
                name,
                f"in {where}: the second moment is {factor:.5g} times what it should be, as with beta2={beta:.6g}",
            )
        elif fresh.ndim == 2 and 0 < np.sum(rows) < len(rows):
            count = int(np.sum(rows))
            words = f"in {where}: repeated indices are squared one by one, in {count} rows of {name}'s second moment"
            stage.blame("repeated_indices", side, name, words, confirmed=False)
        else:
            words = f"in {where}: the second moment of {name} is not that of the gradients"
            stage.blame("second_moment", side, name, words, confirmed=False)


def _largest(update: Update) -> float:
    return max((float(np.linalg.norm(each**2)) for each in update.gradients.values()), default=0.0)


def _of_config(update: Update) -> Formula:
    settings, rate = update.config.optimizer, compute_learning_rate(update.config, update.step)
    decay = settings.weight_decay if settings.kind == "adamw" else 0.0
    return Formula("sgd" if settings.kind == "sgd" else "adam", rate, settings.epsilon or 0.0, decay=decay)


def _variants(formula: Formula, update: Update) -> Iterator[Formula]:
    """The formula with one thing changed."""
    config, step = update.config, update.step
    settings = config.optimizer
    rates = {
        "learning_rate_scaled": (
            formula.rate * update.replicas,
            f"the learning rate is multiplied by the {update.replicas} replicas",
        ),
        "learning_rate_divided": (
            formula.rate / update.replicas,
            f"the learning rate is divided by the {update.replicas} replicas",
        ),
        "learning_rate_root": (
            formula.rate * update.replicas**0.5,
            f"the learning rate is multiplied by sqrt({update.replicas})",
        ),
        "schedule_late": (compute_learning_rate(config, step - 1) if step > 1 else 0.0, "the schedule is a step late"),
        "schedule_early": (compute_learning_rate(config, step + 1), "the schedule is a step early"),
        "no_schedule": (settings.learning_rate, "the learning rate is constant: the schedule is not applied"),
    }
    for cause, (rate, words) in rates.items():
        if rate != formula.rate:
            yield replace(formula, rate=rate, cause=cause, words=words)
    if formula.kind == "adam":
        for place in PLACES:
            for epsilon in dict.fromkeys((formula.epsilon, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 0.0)):
                if place != formula.place and epsilon != formula.epsilon:
                    words = f"epsilon is {epsilon:g}, not {formula.epsilon:g}, and is added {place}"
                    yield replace(formula, place=place, epsilon=epsilon, cause="epsilon+epsilon_place", words=words)
                elif place != formula.place:
                    yield replace(formula, place=place, cause="epsilon_place", words=f"epsilon is added {place}")
                elif epsilon != formula.epsilon:
                    words = f"epsilon is {epsilon:g}, not {formula.epsilon:g}"
                    yield replace(formula, epsilon=epsilon, cause="epsilon", words=words)
        yield replace(formula, corrected=False, cause="bias_correction", words="Adam's bias correction is missing")
    if formula.decay:
        yield replace(formula, decay=0.0, cause="no_weight_decay", words="the weights do not decay")
        yield replace(
            formula,
            decays_vectors=False,
            cause="weight_decay_on_biases",
            words="biases and normalizations do not decay",
        )
        yield replace(
            formula, decay=2 * formula.decay, cause="weight_decay_twice", words="the weights decay twice as much"
        )
        words = "the weight decay is not multiplied by the learning rate"
        yield replace(
            formula, decay=formula.decay / (formula.rate or 1.0), cause="weight_decay_without_rate", words=words
        )
    else:
        for decay in (0.01, 0.001, 0.0001, 0.004, 0.1):
            yield replace(
                formula, decay=decay, cause="weight_decay", words=f"the weights decay by {decay:g}, decoupled"
            )
    for decay in (0.01, 0.004):
        if formula.decay not in (0.0, decay):
            yield replace(
                formula,
                decay=decay,
                cause="weight_decay",
                words=f"the weight decay is {decay:g}, not {formula.decay:g}",
            )


def _search(formula: Formula, weights: Arrays, update: Update, seen: Arrays, exact: float) -> list[Formula]:
    """The changes that explain an update: one, or several that each bring it nearer, the largest first."""
    chosen: list[Formula] = []
    off = start = min(1.0, _distance(formula, weights, update, seen))
    while off > max(exact, start * 1e-4) and len(chosen) < MOST:
        taken = {cause for each in chosen for cause in each.cause.split("+")}
        variants = [each for each in _variants(formula, update) if taken.isdisjoint(each.cause.split("+"))]
        formula = min(variants, key=lambda each: _distance(each, weights, update, seen))
        nearer = _distance(formula, weights, update, seen)
        if nearer > off / 2:
            return []
        off = nearer
        chosen.append(formula)
    return chosen if off <= max(exact, start * 1e-4) else []


def _exact(update: Update, weights: Arrays, seen: Arrays) -> float:
    """What a formula must reproduce: the weights, far larger than an update, are rounded after it."""
    sizes = [sum(float(np.square(each).sum()) for each in found.values()) ** 0.5 for found in (weights, seen)]
    return max(OFF, update.unit * (WEIGHT_UNITS * sizes[0] / (sizes[1] or 1.0) + UPDATE_UNITS))


def _distance(formula: Formula, weights: Arrays, update: Update, seen: Arrays) -> float:
    """Of the updates, as one vector, relative to its norm."""
    settings = update.config.optimizer
    betas = settings.beta1 or 0.0, settings.beta2 or 0.0
    expected = formula.update(weights, update.slots, betas, update.step)
    return _relative([expected[name] for name in seen], list(seen.values()))


def _relative(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    apart = sum(float(np.square(x - y).sum()) for x, y in zip(a, b, strict=True)) ** 0.5
    size = sum(float(np.square(y).sum()) for y in b) ** 0.5
    return apart / size if size else (0.0 if apart == 0 else np.inf)
