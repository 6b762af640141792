"""Training of a proven pair: five steps in float64 as `ddp` x2 and as `mirrored` x2."""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.pairs import CLASSES, ZooPair
from benchmarks.zoo.result import ZooResult
from common.map.input_specs import draw_inputs, parse_input_spec

STEPS, BATCH, VALIDATION = 5, 8, 8
COMMANDS = {"torch_impl.train": "ddp", "tf_impl.train": "mirrored"}  # the strategies by the module of the command
TIMEOUT_SECONDS = 600


def train_pair(pair: ZooPair, result: ZooResult) -> ZooResult:
    """Train both models. Return the result with the largest differences, or with the error of a command."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as temporary:
        directory = Path(temporary)
        arguments = [*_write_data(pair, directory), f"model.torch={pair.torch}", f"model.tf={pair.keras}"]
        arguments += [f"{key}={value}" for key, value in pair.task.items()]
        for module, strategy in COMMANDS.items():
            error = _run(module, strategy, arguments, directory)
            if error:
                return replace(result, differences=[error])
        curves = [_read_curve(directory / module / "metrics.jsonl") for module in COMMANDS]
    losses, norms = (np.max(np.abs(a - b) / np.abs(a)) for a, b in zip(*curves, strict=True))
    return replace(result, losses=float(losses), gradient_norms=float(norms))


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


def _run(module: str, strategy: str, arguments: Sequence[str], directory: Path) -> str:
    """Run a training command. Return the last line of its error, or nothing."""
    command = [
        *(sys.executable, "-m", module, "model=custom", f"strategy={strategy}", "strategy.replicas=2"),
        *(f"train.steps={STEPS}", f"train.global_batch_size={BATCH}", "train.precision=float64", "train.device=cpu"),
        *(f"run_dir={directory / module}", f"cache_dir={directory / 'cache'}", "schedule=constant"),
        *arguments,
    ]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if completed.returncode == 0:
        return ""
    lines = [line for line in completed.stderr.splitlines() if line.strip()]
    return f"{module}: {lines[-1] if lines else 'no output'}".replace(str(directory), "")


def _read_curve(path: Path) -> np.ndarray:
    """Return the losses and the norms of the gradients [2, STEPS]."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return np.array([[row[name] for row in rows] for name in ("loss", "grad_norm")], np.float64)
