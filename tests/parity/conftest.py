"""The runs that the parity tests compare. They are trained once for the session, in few processes side by side."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from tests.parity.strategies import STRATEGIES

# The last batch of an epoch, step 16 or 17, has 2 examples, fewer than most strategies have replicas; so has the last
# batch of the evaluation.
CORPUS = ("data.train_examples=482", "data.validation_examples=122")
PLAIN = ("schedule=constant", "optimizer.max_grad_norm=null")
ADAMW = ("optimizer=adamw", "optimizer.learning_rate=1e-3", *PLAIN, "train.global_batch_size=30")
TRANSFORMS = "data.transforms=[{random_crop: 1}, horizontal_flip, {normalize: {mean: [0.3], std: [0.4]}}, mixup]"
CONVNET = ("train.steps=30", "model=convnet", "train.global_batch_size=62")  # step 24 has 11 images, of 1,437
FLOAT64 = "train.precision=float64"
LAYER = "model.layers=1"  # TensorFlow takes long to trace a layer; only adamw has two
# momentum, coupled weight decay, clipping, warm-up and decay, which the other experiments do not have
SGD = (
    "optimizer=sgd",
    "optimizer.learning_rate=0.1",
    "optimizer.weight_decay=0.01",
    "optimizer.max_grad_norm=0.3",
    "schedule=cosine",
    "schedule.warmup_steps=5",
)
BERT = {
    "adam": ("train.steps=30", LAYER, "optimizer=adam", "optimizer.learning_rate=3e-5", *PLAIN),
    "adamw": ("train.steps=30", *ADAMW),
    "adamw64": ("train.steps=30", LAYER, *ADAMW, FLOAT64),
    "sgd": ("train.steps=30", LAYER, *SGD),
}
FALLING = ("schedule.patience=0", "schedule.threshold=0.5", "schedule.factor=0.5", "train.eval_every=3")
NADAM = ("optimizer=nadam", "optimizer.learning_rate=1e-3", "optimizer.semantics=keras")
AVERAGED = ("ema.decay=0.8", "train.evaluate_average=true", "train.evaluate_both=true")
RMSPROP = ("optimizer=rmsprop", "optimizer.momentum=0.5", "optimizer.max_grad_norm=null", "optimizer.clip_value=0.01")
GROUPS = "optimizer.groups=[no_decay_on_bias_and_norm,{match:conv*,learning_rate_scale:0.9}]"
ONE_CYCLE = (
    "schedule=one_cycle",
    "schedule.cycle_momentum=true",
    "schedule.warmup_steps=2",
    "optimizer.weight_decay=0.01",
)
BERT["dropout"] = (*BERT["adamw"], LAYER, "model.dropout=0.1", "metrics=[f1]")
BERT["dropout64"] = (*BERT["dropout"], FLOAT64, "metrics=[f1,auc]")
ARRAYS = ("data=arrays", "data.train={data}/train.npz", "data.validation={data}/validation.npz")
TEXT = ("data=lines", "data.train={data}/train.txt", "data.validation={data}/validation.txt", "data.tokenizer=bytes")
# Shards are uneven for 2, 3 and 4 replicas.
READ = ("data=custom", "data.read=tests.parity.stream_data:read", "+data.arguments.directory={data}")
CUSTOM = ("train.steps=30", "schedule=constant", "optimizer.learning_rate=0.003", "train.global_batch_size=31")
HEADS = "{mask: {loss: dice, weight: 0.3}, group: {class_weights: [1,2,0.5]}, age: {kind: regression, weight: 2}}"
HEADS_METRICS = "metrics=[mask.iou,group.f1,age.pearson]"
EXAMPLES = {  # the example whose data is used, and the settings
    "resnet": ("resnet", (*ARRAYS, "data.channels=[images]", "model.sync_batch_norm=true")),
    "lstm": ("lstm", ARRAYS),
    "gpt": ("gpt", (*TEXT, "train.max_length=64", "task=language_model", "metrics=[f1]")),
    "tabular": ("tabular", (*ARRAYS, "task=regression", "task.loss=huber", "metrics=[r2,spearman]")),
    # An epoch has three blocks; the last one has 20 examples. Batches have examples of two blocks.
    "stream": ("tabular", (*READ, "data.stream=40", "data.stream_examples=100", "task=regression")),
    "hf": ("lstm", (*ARRAYS, "task.label_smoothing=0.1", "task.class_weights=[0.5,2]")),
    "keras_two": ("tabular", (*ARRAYS, "task=regression")),
    # PyTorch compiles a layer of BERT for minutes, and the convnet for 40 seconds: make bench-parity does that.
    "compiled": ("tabular", (*ARRAYS, "task=regression")),
    "attention": ("lstm", (*ARRAYS, "+model.arguments.dropout=0.1")),
    "tagger": ("tagger", (*ARRAYS, "task.loss=focal", "task.class_weights=[1,2,0.5]")),
    "translation": ("translation", ARRAYS),
    "pairs": ("pairs", (*ARRAYS, "task=contrastive", "task.symmetric=true", "task.temperature=0.2")),
    "heads": (
        "heads",
        (*ARRAYS, "data.channels=[images]", "task=multi_output", f"task.outputs={HEADS}", HEADS_METRICS),
    ),
}
EXPERIMENTS = {name: (*CORPUS, *overrides) for name, overrides in BERT.items()} | {
    "convnet": CONVNET,
    "convnet64": (*CONVNET, FLOAT64),
    "sgd64": (*CONVNET, *SGD, FLOAT64),
    "plateau64": (*CONVNET, "train.steps=10", *NADAM, "schedule=plateau", *FALLING, *AVERAGED, FLOAT64),
    "one_cycle64": (*CONVNET, "train.steps=10", *RMSPROP, GROUPS, *ONE_CYCLE, FLOAT64),
    "convnet_dropout": (*CONVNET, "model.dropout=0.25"),
    "convnet_dropout64": (*CONVNET, FLOAT64, "model.dropout=0.25", TRANSFORMS, "metrics=[auc,top5]"),
}
SINGLES = ("torch-single", "tf-single")
# The strategies of each experiment. `make bench-parity` runs all strategies in seven experiments: see test_every.py. It
# runs all examples with mirrored: see test_examples.py.
# Slow strategies take part in the most sensitive experiments: a run with dropout shows every fault that one without it
# shows, and float64 shows every fault that float32 shows. TensorFlow traces an image model faster than a text model.
# The group of ranks trains every example: it prepares the models, so that no other process starts both frameworks.
PAIRED = {
    "adamw": (*SINGLES, "torch-ddp-3-static", "torch-allreduce-3-native"),
    "adamw64": (*SINGLES, "torch-ddp-3", "torch-zero-3", "tf-mirrored-2"),
    "sgd64": SINGLES,
    "plateau64": (*SINGLES, "torch-ddp-3", "torch-parameter_server-3", "tf-mirrored-2"),
    "one_cycle64": SINGLES,
    "dropout64": (
        *SINGLES,
        "torch-dp-4",
        "torch-dp-3-in_forward",
        "torch-ddp-3-after",
        "torch-allreduce-3-ring",
        "torch-allreduce-3-doubling",
        "torch-fsdp-3",
    ),
    "convnet": SINGLES,
    "convnet_dropout64": (
        *SINGLES,
        "torch-dp-2",
        "torch-dp-3-criterion",
        "tf-mirrored-4",
        "tf-central_storage-3",
        "tf-multiworker-3",
        "tf-parameter_server-3",
    ),
    "resnet": (*SINGLES, "torch-ddp-3", "torch-fsdp-3", "tf-mirrored-2"),
    "lstm": (*SINGLES, "torch-ddp-3"),
    "gpt": (*SINGLES, "torch-ddp-3"),
    "tabular": (*SINGLES, "torch-ddp-3"),
    "stream": ("torch-ddp-3", "tf-mirrored-2"),
    "hf": (*SINGLES, "torch-ddp-3"),
    "keras_two": (*SINGLES, "torch-ddp-3", "tf-mirrored-2"),
    "compiled": (*SINGLES, "torch-ddp-3", "torch-single-compiled", "tf-single-compiled"),
    "attention": (*SINGLES, "torch-ddp-3", "torch-allreduce-3-ring"),
    "tagger": (*SINGLES, "torch-ddp-3", "tf-mirrored-2"),
    "translation": (*SINGLES, "torch-ddp-3"),
    "pairs": (*SINGLES, "torch-dp-2", "torch-ddp-3", "torch-zero-3", "torch-allreduce-3-native", "tf-mirrored-2"),
    "heads": (*SINGLES, "torch-ddp-3", "torch-fsdp-3", "tf-mirrored-2"),
}
# For CI: two epochs of 7 steps, the last of which has 2 examples as well. TensorFlow takes long to trace a layer.
FEWER = {
    **dict.fromkeys(BERT, ("train.steps=14", "data.train_examples=182")),
    **dict.fromkeys(EXAMPLES, ("train.steps=14",)),
    "gpt": ("train.steps=14", "+model.arguments.layers=1"),
}
# Their model pairs are in tests/parity.
OF_TESTS = ("attention", "compiled", "keras_two", "tagger", "heads", "pairs", "translation")
# The runs with planted faults. One replica is fastest, but only uneven shards show the mean of replica means. Faults in
# code of both sides are planted in a run of PyTorch, which does not trace its step.
FAULTS = dict.fromkeys(("native_adam", "tanh_gelu", "layer_norm_epsilon", "no_attention_mask"), "tf-single")
FAULTS |= {"other_shuffle": "torch-single"}
FAULTY = [("sgd64" if fault == "other_shuffle" else "adamw64", fault, strategy) for fault, strategy in FAULTS.items()]
FAULTY += [("dropout64", "native_dropout", "tf-single"), ("convnet_dropout64", "masks_by_place", "torch-single")]
FAULTY += [("convnet", "flatten_order", "tf-single"), ("plateau64", "average_evaluated_twice", "torch-single")]
FAULTY += [
    ("resnet", "batch_norm_of_each_replica", "torch-ddp-3"),
    ("tabular", "mean_of_replica_means", "tf-mirrored-2"),
    ("tagger", "mean_of_replica_means", "tf-mirrored-2"),
    ("stream", "other_shuffle_of_later_blocks", "tf-single"),
]
# A model with other dropout is described again by both frameworks, which the group of ranks has started.
FAULTY += [("gpt", "native_dropout", strategy) for strategy in ("torch-ddp-3", "tf-single")]
FAULTY += [("attention", "native_dropout", "torch-ddp-3")]
FAULT_KEYS = {  # the faults that are settings; tests/parity/trainer.py plants the others
    "native_adam": "optimizer.semantics=native",
    "native_dropout": "model.dropout_semantics=native",
    "batch_norm_of_each_replica": "model.sync_batch_norm=false",
}


@dataclass(frozen=True)
class Planned:
    """A run to train, with or without a planted fault."""

    strategy: str
    overrides: tuple[str, ...]
    fault: str | None = None

    @property
    def process(self) -> str:
        """The process or group of ranks that trains the run.

        TensorFlow's collectives bind a process to the shapes that they first reduced. On a CPU, only contrastive losses
        and averages of the replicas' buffers use them. TensorFlow's clusters start their own processes.
        """
        framework, strategy, *replicas = self.strategy.split("-")
        if strategy in ("ddp", "allreduce", "zero", "fsdp"):
            return f"ranks-{replicas[0]}"
        if strategy in ("multiworker", "parameter_server"):
            return f"{framework}-clusters"
        if strategy == "mirrored" and "task=contrastive" in self.overrides:
            return f"tf-{replicas[0]}-contrastive"
        return framework

    def describe(self, run_dir: Path) -> dict[str, object]:
        """Return an entry of RUNS.json, which the trainer reads."""
        overrides = [*self.overrides, *STRATEGIES[self.strategy].split()]
        overrides += [FAULT_KEYS[self.fault]] if self.fault in FAULT_KEYS else []
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
            env={"OMP_WAIT_POLICY": "PASSIVE", "PYTHONFAULTHANDLER": "1", **os.environ},
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
    overrides = {
        experiment: (*make_overrides(runs.base, experiment), *FEWER.get(experiment, ())) for experiment in PAIRED
    }
    planned = {runs.path(*key): Planned(key[1], overrides[key[0]]) for key in list_pairs(PAIRED)}
    for experiment, fault, strategy in FAULTY:
        # Five steps are enough in float64.
        few = ("train.steps=5",) if FLOAT64 in overrides[experiment] else ()
        planned[runs.path(experiment, strategy, fault)] = Planned(strategy, (*overrides[experiment], *few), fault)
    train(planned)
    return runs


def make_overrides(base: Path, experiment: str, precision: str = "float64") -> tuple[str, ...]:
    """Return the overrides of an experiment, and write the data of an example.

    Args:
        base: The directory of the cache and of the data.
        experiment: A key of EXPERIMENTS or EXAMPLES.
        precision: The precision of an example.
    """
    cache = f"cache_dir={base / 'cache'}"
    if experiment in EXPERIMENTS:
        return (cache, *EXPERIMENTS[experiment])
    name, settings = EXAMPLES[experiment]
    data = base / "data" / name
    if not data.exists():
        import_module(f"tests.parity.{name}_data" if name in OF_TESTS else f"examples.{name}.data").write(data)
    pair = "tabular" if experiment == "stream" else experiment
    modules = f"tests.parity.{pair}_" if pair in OF_TESTS else f"examples.{pair}.model_"
    factories = (f"model.torch={modules}torch:build", f"model.tf={modules}keras:build")
    formatted = (setting.replace("{data}", str(data)) for setting in settings)
    return (cache, "model=custom", *factories, *formatted, *CUSTOM, f"train.precision={precision}")


def list_pairs(strategies: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Return all pairs of an experiment and one of its strategies."""
    return [(experiment, strategy) for experiment, names in strategies.items() for strategy in names]
