"""Training of the three pairs in stages. Each stage removes one difference."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.crossed_wires.ladders import CLASSES, IMAGE_SIZE, LADDERS, PAPER_CHANGES, TORCH_CHANGES
from common.records.summary import read_final_summary

HERE = "benchmarks.crossed_wires"
RESULTS = Path("build/crossed_wires")
STEPS, BATCH, VALIDATION = 12, 8, 40
OVERRIDES = [
    *("data=arrays", "data.channels=[images]", f"data.classes=[{','.join(map(str, range(CLASSES)))}]"),
    *("model=custom", "strategy=single", "train.device=cpu", "train.precision=float64"),
    *(f"train.steps={STEPS}", f"train.global_batch_size={BATCH}", "train.eval_every=3", "train.checkpoint_every=null"),
    # With the learning rate of a test in the paper's code, 1e-3, a rounding error grows by a factor of ten or more in
    # most steps of ResNet-50, so that equal models would differ as much as others.
    *("optimizer=adam", "optimizer.learning_rate=1e-5", "optimizer.epsilon=1e-8", "optimizer.max_grad_norm=null"),
    "schedule=constant",
]


@dataclass(frozen=True)
class Stage:
    """A pair after some of its differences are removed.

    Attributes:
        label: The difference that this stage removes.
        changes: The number of changes of the pair's ladder that are applied.
        shares_weights: Whether Keras's model starts from the weights of PyTorch's factory.
        semantics: `optimizer.semantics` of Keras's side.
        is_equal: Whether no difference remains, which is then proven before training.
    """

    label: str
    changes: int
    shares_weights: bool = True
    semantics: str = "aligned"
    is_equal: bool = False


def list_stages(pair: str) -> list[Stage]:
    """Return the stages of a pair, from the paper's models and optimizers to two equal ones."""
    ladder, published = LADDERS[pair], PAPER_CHANGES[pair]
    return [
        Stage("as published", published, shares_weights=False, semantics="native"),
        Stage("same initial weights", published, semantics="native"),
        Stage("same Adam", published),
        *(
            Stage(f"same {ladder[count - 1]}", count, is_equal=count == len(ladder))
            for count in range(published + 1, len(ladder) + 1)
        ),
    ]


def train_torch(pair: str, stage: Stage) -> Path:
    """Train PyTorch's model of a stage, unless that was done for an earlier stage. Return its run directory."""
    applied = [count for count, name in enumerate(LADDERS[pair][: stage.changes], 1) if name in TORCH_CHANGES]
    changes = max(applied, default=0)  # the later ones change Keras's model only
    model = [f"model.torch={HERE}.models_torch:{pair}", f"model.arguments.changes={changes}"]
    return _train("torch", f"{pair}-torch-{changes}", model)


def train_keras(pair: str, stage: Stage) -> Path:
    """Train Keras's model of a stage, unless that was done before. Return its run directory."""
    model = [f"model.tf={HERE}.models_keras:{pair}", f"model.arguments.changes={stage.changes}"]
    if stage.shares_weights:
        model.append(f"model.torch={HERE}.models_torch:{pair}")
    if not stage.is_equal:
        model += ["model.prove=false", "model.allow_unpaired=true", "model.dropout_semantics=native"]
    name = f"{pair}-keras-{stage.label.replace(' ', '-')}"
    return _train("tf", name, [*model, f"optimizer.semantics={stage.semantics}"])


def _train(framework: str, name: str, overrides: Sequence[str]) -> Path:
    run_dir = RESULTS / name
    summary = read_final_summary(run_dir)
    if summary is None or summary["status"] != "completed":
        files = [f"data.{split}={write_data(split)}" for split in ("train", "validation")]
        directories = [f"run_dir={run_dir}", f"cache_dir={RESULTS / 'cache'}"]
        command = [sys.executable, "-m", f"{framework}_impl.train", *OVERRIDES, *overrides, *files, *directories]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run_dir


def write_data(split: str) -> Path:
    """Write images of the shape of CIFAR-10: a pattern of 4x4 coloured squares for each class, with noise."""
    path = RESULTS / f"{split}.npz"
    if not path.exists():
        stream = np.random.default_rng(0)
        squares = stream.uniform(size=(CLASSES, 4, 4, 3))
        patterns = np.kron(squares, np.ones((1, IMAGE_SIZE // 4, IMAGE_SIZE // 4, 1)))
        counts = {"train": STEPS * BATCH, "validation": VALIDATION}
        images = {name: stream.normal(0, 0.3, (count, IMAGE_SIZE, IMAGE_SIZE, 3)) for name, count in counts.items()}
        labels = np.arange(counts[split]) % CLASSES
        pixels = np.clip(patterns[labels] + images[split], 0, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, images=pixels.astype(np.float32), labels=labels)
    return path
