"""Training of a proven pair: five steps in float64, by default as `ddp` x2 and as `mirrored` x2."""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.pairs import CLASSES, ZooPair
from benchmarks.zoo.result import ZooResult
from common.map.input_specs import draw_inputs, parse_input_spec

STEPS, BATCH, VALIDATION = 5, 8, 8
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class TrainingCommand:
    """A training command with its strategy, such as `python -m torch_impl.train strategy=ddp strategy.replicas=2`."""

    package: str
    overrides: tuple[str, ...]

    def __str__(self) -> str:
        """Return the command without `python -m`."""
        return " ".join([f"{self.package}.train", *self.overrides])


TWO_REPLICAS = "strategy.replicas=2"
DDP = TrainingCommand("torch_impl", ("strategy=ddp", TWO_REPLICAS))
MIRRORED = TrainingCommand("tf_impl", ("strategy=mirrored", TWO_REPLICAS))


def train_pair(pair: ZooPair, result: ZooResult) -> ZooResult:
    """Train both models. Return the result with the largest differences, or with the error of a command."""
    torch_curve, keras_curve = train_curves(pair, [DDP, MIRRORED])
    if isinstance(torch_curve, str) or isinstance(keras_curve, str):
        return replace(result, differences=[x for x in (torch_curve, keras_curve) if isinstance(x, str)])
    losses, norms = compare_curves(torch_curve, keras_curve)
    return replace(result, losses=losses, gradient_norms=norms)


def train_curves(pair: ZooPair, commands: Sequence[TrainingCommand]) -> list[np.ndarray | str]:
    """Train a pair with each command. Return the losses and the norms of the gradients [2, STEPS], or an error."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as temporary:
        directory = Path(temporary)
        arguments = [*_write_data(pair, directory), f"model.torch={pair.torch}", f"model.tf={pair.keras}"]
        arguments += [f"{key}={value}" for key, value in pair.task.items()]
        return [_train(command, arguments, directory, f"run-{number}") for number, command in enumerate(commands)]


def compare_curves(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Return the largest relative differences of the losses and the gradient norms."""
    losses, norms = np.max(np.abs(a - b) / np.abs(a), axis=1)
    return float(losses), float(norms)


def _write_data(pair: ZooPair, directory: Path) -> list[str]:
    """Write random inputs and labels. Return the keys of the data."""
    specs = {name: parse_input_spec(name, text) for name, text in pair.inputs.items()}
    keys = ["data=arrays"]
    for split, count in (("train", STEPS * BATCH), ("validation", VALIDATION)):
        sized = {name: replace(spec, shape=(count, *spec.shape[1:])) for name, spec in specs.items()}
        path = directory / f"{split}.npz"
        arrays: dict[str, Any] = draw_inputs(sized, seed=len(split))
        labels = np.arange(count * math.prod(pair.label_shape)) % CLASSES
        np.savez(path, labels=labels.reshape(count, *pair.label_shape), **arrays)
        keys.append(f"data.{split}={path}")
    channels = [name for name, spec in specs.items() if spec.channels]
    classes = "null" if pair.label_shape else "[" + ",".join(map(str, range(CLASSES))) + "]"
    return [*keys, f"data.channels=[{','.join(channels)}]", f"data.classes={classes}"]


def _train(command: TrainingCommand, arguments: Sequence[str], directory: Path, name: str) -> np.ndarray | str:
    """Run a training command. Return its curve, or the last line of its error."""
    module, run_dir = f"{command.package}.train", directory / name
    words = [
        *(sys.executable, "-m", module, "model=custom", *command.overrides),
        *(f"train.steps={STEPS}", f"train.global_batch_size={BATCH}", "train.precision=float64", "train.device=cpu"),
        *(f"run_dir={run_dir}", f"cache_dir={directory / 'cache'}", "schedule=constant"),
        *arguments,
    ]
    completed = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if completed.returncode == 0:
        return _read_curve(run_dir / "metrics.jsonl")
    lines = [line for line in completed.stderr.splitlines() if line.strip()]
    return f"{module}: {lines[-1] if lines else 'no output'}".replace(str(directory), "")


def _read_curve(path: Path) -> np.ndarray:
    """Return the losses and the norms of the gradients [2, STEPS]."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return np.array([[row[name] for row in rows] for name in ("loss", "grad_norm")], np.float64)
