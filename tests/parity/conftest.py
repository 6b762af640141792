"""The runs that the parity tests compare. They are trained once for the session, in few processes side by side."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

CORE = {  # every experiment trains some of these
    "torch-single": "strategy=single",
    "torch-dp-2": "strategy=dp strategy.replicas=2",
    "torch-dp-4": "strategy=dp strategy.replicas=4",
    "torch-ddp-2": "strategy=ddp strategy.replicas=2",
    "torch-ddp-4": "strategy=ddp strategy.replicas=4",
    "tf-single": "strategy=single",
    "tf-mirrored-2": "strategy=mirrored strategy.replicas=2",
    "tf-mirrored-4": "strategy=mirrored strategy.replicas=4",
}
DDP, BY_HAND = "strategy=ddp strategy.replicas=3", "strategy=allreduce strategy.replicas=3"
SERVERS = "strategy=parameter_server strategy.parameter_servers=2 strategy.max_staleness=0"
SPLIT, PADDED = "train.padding=micro_batches", "train.padding=global"  # without one of these, nothing is padded
OTHERS = {
    "torch-dp-3-in_forward": "strategy=dp strategy.replicas=3 strategy.loss=in_forward strategy.output_device=1 "
    f"{PADDED}",
    "torch-dp-3-criterion": f"strategy=dp strategy.replicas=3 strategy.loss=criterion {SPLIT}",
    "torch-ddp-3-after": f"{DDP} strategy.overlap=false strategy.bucket_cap_mb=0.1 strategy.accumulate=3 {SPLIT}",
    "torch-ddp-3-static": f"{DDP} strategy.static_graph=true strategy.gradient_as_bucket_view=false",
    "torch-allreduce-3-ring": f"{BY_HAND} strategy.algorithm=ring strategy.bucket_cap_mb=0.5 {SPLIT}",
    "torch-allreduce-3-gather": f"{BY_HAND} strategy.algorithm=gather_broadcast strategy.overlap=false",
    "torch-allreduce-3-all": f"{BY_HAND} strategy.algorithm=all_to_all strategy.bucket_cap_mb=null",
    "torch-allreduce-3-doubling": f"{BY_HAND} strategy.algorithm=recursive_doubling",
    "torch-allreduce-3-native": f"{BY_HAND} strategy.algorithm=native strategy.bucket_cap_mb=1",
    "torch-parameter_server-3": f"{SERVERS} strategy.workers=3",
    "torch-ddp-2-compiled": "strategy=ddp strategy.replicas=2 train.compile=true",
    "tf-central_storage-3": f"strategy=central_storage strategy.replicas=3 {SPLIT}",
    "tf-multiworker-2": f"strategy=multiworker strategy.workers=2 strategy.communication=ring {PADDED}",
    "tf-multiworker-3": "strategy=multiworker strategy.workers=3 strategy.bytes_per_pack=100000",
    "tf-parameter_server-3": f"{SERVERS} strategy.workers=3",
    "tf-mirrored-2-compiled": "strategy=mirrored strategy.replicas=2 train.compile=true",
}
STRATEGIES = CORE | OTHERS | {"torch-ddp-3": DDP}
# The last batch of an epoch, step 16 or 17, is smaller. The last batch of the evaluation has 2 examples for 4 replicas.
CORPUS = ("data.train_examples=500", "data.validation_examples=122")
PLAIN = ("schedule=constant", "optimizer.max_grad_norm=null")
ADAMW = ("optimizer=adamw", "optimizer.learning_rate=1e-3", *PLAIN)
CONVNET = ("train.steps=30", "model=convnet", "train.global_batch_size=62")  # step 24 has 11 images, of 1,437
BERT = {
    # 482 = 15 x 32 + 2: a training batch with fewer examples than replicas
    "adam": ("train.steps=30", "optimizer=adam", "optimizer.learning_rate=3e-5", *PLAIN, "data.train_examples=482"),
    "adamw-30": ("train.steps=30", *ADAMW, "train.global_batch_size=30"),
    "float64-30": ("train.steps=30", *ADAMW, "train.global_batch_size=30", "train.precision=float64"),
    "float64": ("train.steps=100", *ADAMW, "train.global_batch_size=30", "train.precision=float64"),
    # momentum, coupled weight decay, clipping, warm-up and decay, which the other experiments do not have
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
BERT["sgd64"] = (*BERT["sgd"], "train.precision=float64")
BERT["dropout"] = (*BERT["adamw-30"], "model.dropout=0.1")
BERT["dropout64"] = (*BERT["float64-30"], "model.dropout=0.1")
BERT["compiled64"] = (*BERT["dropout64"], "train.steps=10")
EXPERIMENTS = {name: (*CORPUS, *overrides) for name, overrides in BERT.items()} | {
    "convnet": CONVNET,
    "convnet64": (*CONVNET, "train.precision=float64"),
    "convnet_dropout": (*CONVNET, "model.dropout=0.25"),
    "convnet_dropout64": (*CONVNET, "train.precision=float64", "model.dropout=0.25"),
}
CLUSTERS = (
    "tf-multiworker-2",
    "tf-multiworker-3",
    "tf-parameter_server-3",
)  # their processes start again for every run
COMPILED = ("torch-ddp-2-compiled", "tf-mirrored-2-compiled")  # a run takes as long as ten others
QUICK = tuple(name for name in OTHERS if name not in (*CLUSTERS, *COMPILED))
SINGLES = ("torch-single", "tf-single")
SOME = ("torch-dp-3-criterion", "torch-ddp-3-after", "torch-allreduce-3-ring", "torch-allreduce-3-doubling")
# The strategies of each experiment. `make bench-parity` runs all strategies in seven experiments: see test_every.py.
# Slow strategies take part in the most sensitive experiments: a run with dropout shows every fault that one without it
# shows, and float64 shows every fault that float32 shows.
PAIRED = {
    "adam": (*SINGLES, "torch-dp-4", "torch-ddp-4", "tf-mirrored-4"),
    "adamw-30": (*(name for name in CORE if name != "tf-mirrored-2"), *QUICK),
    "float64": (*SINGLES, "torch-ddp-4", "tf-mirrored-2"),
    "sgd": (*SINGLES, "tf-mirrored-4"),
    "sgd64": SINGLES,
    "dropout": (*SINGLES, "torch-dp-4", "torch-ddp-4", "tf-mirrored-4", "tf-multiworker-2", "tf-parameter_server-3"),
    "dropout64": (*SINGLES, "torch-dp-3-in_forward", *SOME, "tf-multiworker-3"),
    "compiled64": (*SINGLES, *COMPILED),
    "convnet": (*SINGLES, "torch-ddp-2", "tf-mirrored-4", *SOME, "tf-central_storage-3"),
    "convnet64": (*SINGLES, "tf-mirrored-4", "torch-dp-3-criterion"),
    "convnet_dropout64": (*SINGLES, "torch-dp-2", "tf-mirrored-4"),
}
# The runs with planted faults. One replica is fastest, but only uneven shards show the mean of replica means.
FAULTS = dict.fromkeys(
    ("native_adam", "tanh_gelu", "other_shuffle", "layer_norm_epsilon", "no_attention_mask"), "tf-single"
)
FAULTY = [(experiment, *fault) for experiment in ("adamw-30", "float64") for fault in FAULTS.items()]
FAULTY.append(("adamw-30", "mean_of_replica_means", "tf-mirrored-4"))
FAULTY += [("dropout64", "native_dropout", "tf-single"), ("dropout64", "masks_by_place", "tf-single")]
FAULTY.append(("convnet", "flatten_order", "tf-single"))


@dataclass(frozen=True)
class Planned:
    """A run to train, with or without a planted fault."""

    strategy: str
    overrides: tuple[str, ...]
    fault: str | None = None

    @property
    def process(self) -> str:
        """The process or group of ranks that trains the run.

        TensorFlow's collectives bind a process to the shapes that they first reduced. Its clusters start their own
        processes.
        """
        framework, strategy, *replicas = self.strategy.split("-")
        if strategy in ("ddp", "allreduce"):
            return f"ranks-{replicas[0]}"
        if strategy in ("multiworker", "parameter_server"):
            return f"{framework}-clusters"
        if strategy != "mirrored":
            return framework
        keys_of_shapes = (
            "data.train_examples=4",
            "train.precision=",
            "model=",
            "model.torch=",
            "model.sync_batch_norm=",
        )
        shapes = [key for key in self.overrides if key.startswith(keys_of_shapes)]
        return "-".join(["tf", replicas[0], *(key.partition("=")[2] for key in shapes)])

    def describe(self, run_dir: Path) -> dict[str, object]:
        """Return an entry of RUNS.json, which the trainer reads."""
        overrides = [*self.overrides, *STRATEGIES[self.strategy].split()]
        overrides += ["optimizer.semantics=native"] if self.fault == "native_adam" else []
        overrides += ["model.dropout_semantics=native"] if self.fault == "native_dropout" else []
        return {"run_dir": str(run_dir), "overrides": overrides, "fault": self.fault}


def train(runs: dict[Path, Planned]) -> None:
    """Train the runs, two processes or groups of ranks at a time."""
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(lambda name: _train_in_process(name, runs), sorted({planned.process for planned in runs.values()}))
        )


def _train_in_process(name: str, runs: dict[Path, Planned]) -> None:
    base = next(iter(runs)).parent
    spec, output = base / f"{name}.json", base / f"{name}.log"
    spec.write_text(json.dumps([planned.describe(path) for path, planned in runs.items() if planned.process == name]))
    kind, _, ranks = name.partition("-")
    with output.open("w") as file:
        result = subprocess.run(
            [sys.executable, "-m", "tests.parity.trainer", kind, str(spec), *([ranks] if kind == "ranks" else [])],
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
    """The runs of all experiments, and the runs with planted faults."""
    runs = Runs(tmp_path_factory.mktemp("parity"))
    cache = f"cache_dir={runs.base / 'cache'}"
    planned = {runs.path(*key): Planned(key[1], (cache, *EXPERIMENTS[key[0]])) for key in list_pairs(PAIRED)}
    for experiment, fault, strategy in FAULTY:
        overrides = (cache, *EXPERIMENTS[experiment])
        if experiment == "float64":  # enough to show the fault
            overrides = (*overrides, "train.steps=5")
        planned[runs.path(experiment, strategy, fault)] = Planned(strategy, overrides, fault)
    train(planned)
    return runs


def list_pairs(strategies: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Return all pairs of an experiment and one of its strategies."""
    return [(experiment, strategy) for experiment, names in strategies.items() for strategy in names]
