"""The last stages: the state after each step, dropout, and the evaluation of both sides."""

from collections.abc import Collection

import numpy as np

from common.config.tasks import METRICS
from common.diagnose.drift import Drift
from common.diagnose.findings import DIFFERS, Check, Stage
from common.diagnose.observation import Observation
from common.diagnose.rounding import EXACT, SAME, close, noise
from common.diagnose.side_run import Run

MOMENTA = (0.1, 0.01, 0.001, 0.003, 0.05, 0.2)  # of BatchNorm, as PyTorch counts it
LEAST = {"float64": 1e-12, "float32": 2.0**-23, "bfloat16": 2.0**-23}  # noise of weights and losses in a step


def compare_states(a: Run, b: Run, inherited: bool, idle: Collection[str], drift: Drift) -> Stage:
    """Weights, moving statistics and losses after each step. drift: of A.

    idle: parameters whose gradients are nothing but rounding, such as the bias of an attention's key. Adam divides them
    by their own size, so that they move at random.
    """
    stage = Stage("state", precision=a.precision)
    for run in (a, b):
        if run.asynchronous:
            last = [each.states[-1].weights for each in (a, b)]
            for name, each in last[0].items():
                stage.compare(f"end: {name}", each, last[1][name])
            words = (
                f"{run.arguments.title} updates asynchronously, from weights that are older by the updates of other "
                "workers; strategy.max_staleness=0 makes it synchronous"
            )
            stage.blame("asynchronous", run.name, "weights", words, confirmed=False)
            return stage
    moving = _moving_by_a_factor(a, b)  # by the first step, before which nothing else has changed what they are of
    first = a.before + 1
    for step, (ours, theirs) in enumerate(zip(a.states[1:], b.states[1:], strict=False), start=first):
        for name in [each for each in ours.weights if each in theirs.weights and each not in idle]:
            x, y = ours.weights[name], theirs.weights[name]
            if x.shape == y.shape:
                culprit = not inherited or (step == first and name in moving)
                count = step - a.before
                own = LEAST[a.precision] * count + drift.of(count, name)
                spread = ours.weights.get(name.replace("mean", "var")) if _is_moving(name) else None
                least = 0.0 if spread is None else float(np.linalg.norm(np.sqrt(np.abs(spread))))
                stage.compare(f"step {step}: {name}", x, y, own, culprit, least)
    for count, (ours_, theirs_) in enumerate(zip(a.rows, b.rows, strict=False)):
        for key in ("loss", "learning_rate"):
            x, y = np.array([ours_[key]]), np.array([theirs_[key]])
            own = LEAST[a.precision] + (drift.of_loss(count, ours_[key]) if key == "loss" else 0.0)
            stage.compare(f"step {ours_['step']}: {key}", x, y, own, culprit=not inherited)
    if [each.ended for each in (a, b)].count("") == 1:
        run = a if a.ended else b
        check = Check(f"{run.name.upper()}: loss", np.inf, culprit=not inherited)
        stage.checks.append(check)
        if not inherited:
            stage.blame("not_finite", run.name, "loss", f"{run.arguments.title} ends at {run.ended}", confirmed=False)
    found = next((each for each in stage.checks if each.differs and each.culprit), None)
    if moving:
        name, factor = next(iter(moving.items()))
        words = f"in B {name} moves {factor:.4g} times as far: compare momentum (Keras's is 1 - PyTorch's)"
        stage.blame("moving_statistics", "b", f"step {first}: {name}", words)
    elif variance := _variance_of_another_count(a, b):
        name, factor, count = variance
        words = f"in B {name} moves towards {factor:.6g} times A's variance: the sum of squares over "
        words += f"{count} where A's is over {count - 1}" if factor < 1 else f"{count - 1} where A's is over {count}"
        stage.blame("biased_variance", "b", f"step {first}: {name}", words)
    elif stage.causes:
        return stage
    elif found is not None and _is_moving(name := found.tensor.partition(": ")[2]):
        words = f"{name} differs: compare the examples that it is computed of, and the variance's n - 1"
        stage.blame("moving_statistics", "b", found.tensor, words, confirmed=False)
    elif found is not None:
        words = f"{found.tensor} differs by {found.difference:.1e}, and nothing before it explains that"
        stage.blame("unexplained", "b", found.tensor, words, confirmed=False)
    return stage


def _is_moving(name: str) -> bool:
    """Whether this is a moving statistic of BatchNorm."""
    return "running_" in name or "moving_" in name


def _moving_by_a_factor(a: Run, b: Run) -> dict[str, float]:
    """The moving statistics that the first step of B moves so many times as far as that of A."""
    found = {}
    for name in filter(_is_moving, a.states[0].weights):
        start, ours, theirs = (each.weights.get(name) for each in (a.states[0], a.states[1], b.states[1]))
        if start is None or ours is None or theirs is None or theirs.shape != ours.shape or (ours == start).all():
            continue
        factor = float(((theirs - start) * (ours - start)).sum() / ((ours - start) ** 2).sum())
        if abs(factor - 1) > SAME[a.precision] and close((ours - start) * factor, theirs - start, EXACT[a.precision]):
            found[name] = factor
    return found


def _variance_of_another_count(a: Run, b: Run) -> tuple[str, float, int] | None:
    """A moving variance whose batch's variance is divided by n on one side and by n - 1 on the other.

    Returns its name, B's variance of the first batch over A's, and n.
    """
    for name in [each for each in a.states[0].weights if each.endswith(("running_var", "moving_variance"))]:
        start, ours, theirs = (each.weights.get(name) for each in (a.states[0], a.states[1], b.states[1]))
        if start is None or ours is None or theirs is None or ours.shape != theirs.shape or ours.size < 2:
            continue
        for momentum in MOMENTA:
            x, y = ours - (1 - momentum) * start, theirs - (1 - momentum) * start
            factor = float((x * y).sum() / (x * x).sum())
            apart = 1 - min(factor, 1 / factor)
            same, whole = SAME[a.precision], apart and abs(1 / apart - round(1 / apart))
            if apart > same and close(x * factor, y, EXACT[a.precision]) and whole < same / apart:
                return name, factor, round(1 / apart)
    return None


def compare_dropout(
    a: Run, b: Run, ours: Observation, theirs: Observation, disturbed: Observation, inherited: bool
) -> Stage:
    """The outputs in training mode, with aligned dropout. inherited: whether they differ without it."""
    stage = Stage("dropout", precision=a.precision)
    if [getattr(each.config.model, "dropout", None) for each in (a, b)] == [0, 0]:
        stage.note = "the models have no dropout"
        return stage
    for x, y, noisy in zip(ours.outputs, theirs.outputs, disturbed.outputs, strict=False):
        if x.shape == y.shape:
            stage.compare("outputs in training mode", x, y, max(1e-13, noise(x, noisy)), culprit=not inherited)
    for run, computed in ((a, ours), (b, theirs)):
        if run.config.model.dropout_semantics == "native" and run.rows:
            found, without = np.array([run.rows[0]["loss"]]), np.array([_mean_loss(run, computed)])
            check = stage.compare(f"{run.name.upper()}: loss without dropout", found, without, 1e-13)
            if check.differs and not inherited and not stage.causes:
                words = f"{run.arguments.title} draws dropout masks of its own: set model.dropout_semantics=aligned"
                stage.blame("dropout_masks", run.name, "outputs", words)
    if stage.verdict == DIFFERS and not stage.causes:
        stage.blame("training_mode", "b", "outputs", "the models differ in training mode only", confirmed=False)
    return stage


def _mean_loss(run: Run, computed: Observation) -> float:
    """Of the first global batch. Layers that drop by themselves drop nothing where they are observed."""
    parts = zip(computed.losses, run.batches[0].shard(0, 1), strict=True)
    return float(sum((losses * part["weights"]).sum() for losses, part in parts)) / run.batches[0].weight


def compare_evaluations(a: Run, b: Run, inherited: bool, drift: Drift) -> Stage:
    """What both report of the validation data. drift: of A."""
    stage = Stage("evaluation", precision=a.precision)
    if ended := a.ended or b.ended:
        stage.note = f"not compared: a training ends at {ended}"
        return stage
    for key in [each for each in a.evaluation if each not in ("step", "duration")]:
        if key == "accuracy" and a.precision != "float64":
            stage.note = f"accuracy: not compared in {a.precision}, in which rounding alone may turn an answer"
        elif key in b.evaluation:
            x, y = np.array([float(a.evaluation[key])]), np.array([float(b.evaluation[key])])
            own = LEAST[a.precision] * 10
            if key in ("loss", *METRICS):
                own += drift.of_loss(len(a.states) - 1, a.evaluation["loss"])
            stage.compare(key, x, y, own, culprit=not inherited)
    for run in (a, b):
        missing = len(run.prepared.cache.validation) - int(run.evaluation["count"])
        if missing:
            stage.blame("examples_not_evaluated", run.name, "count", f"{missing} validation examples are not evaluated")
    if stage.verdict == DIFFERS and not stage.causes:
        stage.blame(
            "evaluation",
            "b",
            stage.worst.tensor if stage.worst else "",
            "with equal weights B reports another evaluation",
            confirmed=False,
        )
    return stage
