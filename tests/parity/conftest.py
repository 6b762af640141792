"""The runs that the parity tests compare: made once for the session, one process for each framework, side by side."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

STRATEGIES = {
    "torch-single": ("torch", "single", 1),
    "torch-dp-2": ("torch", "dp", 2),
    "torch-dp-4": ("torch", "dp", 4),
    "torch-ddp-2": ("torch", "ddp", 2),
    "torch-ddp-4": ("torch", "ddp", 4),
    "tf-single": ("tf", "single", 1),
    "tf-mirrored-2": ("tf", "mirrored", 2),
    "tf-mirrored-4": ("tf", "mirrored", 4),
}
# The last batch of an epoch, step 16 or 17, is smaller; that of the evaluation at 30 has 2 examples for 4 replicas.
CORPUS = ("data.train_examples=500", "data.validation_examples=122")
PLAIN = ("schedule=constant", "optimizer.max_grad_norm=null")
ADAMW = ("optimizer=adamw", "optimizer.learning_rate=1e-3", *PLAIN)
CONVNET = ("train.steps=30", "model=convnet", "train.global_batch_size=62")  # step 24 has 11 images, of 1,437
BERT = {
    # 482 = 15 x 32 + 2: a training batch with fewer examples than replicas
    "adam": ("train.steps=30", "optimizer=adam", "optimizer.learning_rate=3e-5", *PLAIN, "data.train_examples=482"),
    "adamw": ("train.steps=30", *ADAMW),
    "adamw-30": ("train.steps=30", *ADAMW, "train.global_batch_size=30"),
    "float64": ("train.steps=100", *ADAMW, "train.global_batch_size=30", "train.precision=float64"),
    # what the others leave out: momentum, coupled weight decay, clipping, warm-up and decay
    "sgd": (
        "train.steps=30",
        "optimizer=sgd",
        "optimizer.learning_rate=0.1",
        "optimizer.weight_decay=0.01",
        "optimizer.max_grad_norm=0.3",
        "schedule=cosine",
        "schedule.warmup_steps=5",
    ),
}
EXPERIMENTS = {name: (*CORPUS, *overrides) for name, overrides in BERT.items()} | {
    "convnet": CONVNET,
    "convnet64": (*CONVNET, "train.precision=float64"),
}
PAIRED = {  # strategies of an experiment, where not all
    "sgd": ("torch-single", "tf-single", "tf-mirrored-2"),
    "convnet": ("torch-single", "torch-dp-4", "torch-ddp-2", "tf-single", "tf-mirrored-4"),
    "convnet64": ("torch-single", "tf-single", "tf-mirrored-4"),
}
FAULTS = ("native_adam", "tanh_gelu", "mean_of_replica_means", "other_shuffle", "layer_norm_epsilon")
FAULTY = [(experiment, fault) for experiment in ("adamw-30", "float64") for fault in FAULTS]
FAULTY += [("convnet", "flatten_order"), ("convnet64", "flatten_order")]


@dataclass(frozen=True)
class Planned:
    """A run to make; a fault is planted in tf mirrored x4, whose shards are uneven at 30 examples."""

    strategy: str
    overrides: tuple[str, ...]
    fault: str | None = None

    @property
    def process(self) -> str:
        """The process that makes it: TensorFlow's collectives bind a process to what they first reduced."""
        framework, strategy, replicas = STRATEGIES[self.strategy]
        if strategy != "mirrored":
            return framework
        native = "native" if self.fault == "native_adam" else "aligned"
        changing = ("data.train_examples=4", "train.precision=", "model=")
        shapes = [key for key in self.overrides if key.startswith(changing)]
        return "-".join(["tf", str(replicas), native, *(key.partition("=")[2] for key in shapes)])

    def described(self, run_dir: Path) -> dict[str, object]:
        """An entry of the trainer's RUNS.json."""
        _, name, replicas = STRATEGIES[self.strategy]
        overrides = [*self.overrides, f"strategy={name}", f"strategy.replicas={replicas}"]
        overrides += ["optimizer.semantics=native"] if self.fault == "native_adam" else []
        return {"run_dir": str(run_dir), "overrides": overrides, "fault": self.fault}


def train(runs: dict[Path, Planned]) -> None:
    """Make the runs, up to three processes side by side."""
    with ThreadPoolExecutor(3) as pool:
        list(
            pool.map(
                lambda name: _train(name, runs), sorted({planned.process for planned in runs.values()}, reverse=True)
            )
        )


def _train(name: str, runs: dict[Path, Planned]) -> None:
    base = next(iter(runs)).parent
    spec, output = base / f"{name}.json", base / f"{name}.log"
    spec.write_text(json.dumps([planned.described(path) for path, planned in runs.items() if planned.process == name]))
    with output.open("w") as file:
        result = subprocess.run(
            [sys.executable, "-m", "tests.parity.trainer", name.partition("-")[0], str(spec)],
            stdout=file,
            stderr=file,
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ},
        )
    assert result.returncode == 0, output.read_text()[-3000:]


class Runs:
    """Run directories by experiment, strategy and fault."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def path(self, experiment: str, strategy: str, fault: str | None = None) -> Path:
        return self.base / "-".join(filter(None, (experiment, strategy, fault)))

    def paths(self, experiment: str, strategies: Iterable[str]) -> list[Path]:
        return [self.path(experiment, strategy) for strategy in strategies]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every strategy in every experiment, and the planted faults."""
    made = Runs(tmp_path_factory.mktemp("parity"))
    cache = f"cache_dir={made.base / 'cache'}"
    planned = {
        made.path(experiment, strategy): Planned(strategy, (cache, *overrides))
        for experiment, overrides in EXPERIMENTS.items()
        for strategy in PAIRED.get(experiment, STRATEGIES)
    }
    for experiment, fault in FAULTY:
        overrides = (cache, *EXPERIMENTS[experiment])
        if experiment == "float64":  # enough to see it
            overrides = (*overrides, "train.steps=10")
        planned[made.path(experiment, "tf-mirrored-4", fault)] = Planned("tf-mirrored-4", overrides, fault)
    train(planned)
    return made
