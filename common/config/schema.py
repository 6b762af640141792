"""The config of a run as dataclasses, and how it is read and written; common/validation.py checks its values.

conf/ holds the values; nothing has a default here, so that what a run used is what its config.yaml says.
"""

import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from common.errors import UserError

OmegaConf.register_new_resolver(
    "package_directory", lambda package, *parts: _package_directory(package, *parts), replace=True
)

CONF = str(Path(__file__).parents[2] / "conf")
STRATEGIES = {
    "torch": ("single", "dp", "ddp", "allreduce", "parameter_server"),
    "tf": ("single", "mirrored", "multiworker", "central_storage", "parameter_server"),
}


@dataclass
class Data:
    """`allow_change`: go on from a checkpoint though the data is no longer what it was trained on."""

    name: str
    allow_change: bool


@dataclass
class BuiltinNli(Data):
    """Sentence pairs generated from a grammar; see common/data/builtin_nli.py."""

    seed: int
    train_examples: int
    validation_examples: int


@dataclass
class Files(Data):
    """JSONL, CSV, TSV or Parquet files. `hypothesis: null` means single-sentence data."""

    train: str
    validation: str
    premise: str
    hypothesis: str | None
    label: str
    classes: list[str] | None


@dataclass
class Hub(Data):
    """A data set of the Hugging Face hub at a pinned revision."""

    path: str
    subset: str | None
    revision: str
    train_split: str
    validation_split: str
    premise: str
    hypothesis: str | None
    label: str
    classes: list[str] | None


@dataclass
class Digits(Data):
    """The 1,797 handwritten digits, 8 x 8, that scikit-learn comes with."""


@dataclass
class Idx(Data):
    """IDX files of images and labels, as MNIST is distributed: train-*, and t10k-* for validation."""

    directory: str


@dataclass
class HubImages(Data):
    """A data set of labelled images on the Hugging Face hub at a pinned revision."""

    path: str
    subset: str | None
    revision: str
    train_split: str
    validation_split: str
    image: str
    label: str


@dataclass
class Bert:
    """A BERT with random initial weights and a WordPiece tokenizer trained on the corpus."""

    name: str
    layers: int
    hidden_size: int
    heads: int
    intermediate_size: int
    max_positions: int
    max_vocabulary: int
    hidden_act: str
    dropout: float


@dataclass
class Pretrained:
    """A BERT checkpoint in Hugging Face format: a directory or a hub id."""

    name: str
    checkpoint: str
    revision: str | None
    dropout: float


@dataclass
class ConvNet:
    """Two convolutions and two linear layers, with random initial weights."""

    name: str
    channels: list[int]
    kernel_size: int
    hidden_size: int
    dropout: float


@dataclass
class Optimizer:
    """`momentum` is sgd's; `beta1`, `beta2` and `epsilon` are adam's and adamw's."""

    name: str
    semantics: str
    learning_rate: float
    weight_decay: float
    max_grad_norm: float | None
    momentum: float | None
    beta1: float | None
    beta2: float | None
    epsilon: float | None


@dataclass
class Schedule:
    """`total_steps: null` means all steps of the run."""

    name: str
    warmup_steps: int
    total_steps: int | None


@dataclass
class Strategy:
    """`replicas: null` means every visible GPU, or 2 where there is none (always 1 for `single`)."""

    name: str
    replicas: int | None

    @property
    def updates_per_batch(self) -> int:
        """Updates that one global batch makes."""
        return 1


@dataclass
class Dp(Strategy):
    """`loss`: where it is computed; `output_device`: the index of the replica that the outputs are gathered on."""

    loss: str
    output_device: int


@dataclass
class Ddp(Strategy):
    """DistributedDataParallel's arguments; `accumulate`: passes that make one update, all but the last unsynced."""

    bucket_cap_mb: float
    gradient_as_bucket_view: bool
    static_graph: bool
    comm_hook: str
    overlap: bool
    accumulate: int


@dataclass
class AllReduce(Strategy):
    """`bucket_cap_mb: null` reduces every parameter by itself."""

    algorithm: str
    bucket_cap_mb: float | None
    overlap: bool


@dataclass
class MultiWorker:
    """`workers: null` means every visible GPU, or 2 where there is none; `bytes_per_pack: 0` lets TensorFlow choose."""

    name: str
    workers: int | None
    communication: str
    bytes_per_pack: int

    @property
    def replicas(self) -> int | None:
        """Every worker has one replica."""
        return self.workers

    @property
    def updates_per_batch(self) -> int:
        """Updates that one global batch makes."""
        return 1


@dataclass
class ParameterServer:
    """`batch`: what one update is computed from; `max_staleness: null` sets no bound, 0 makes it synchronous."""

    name: str
    workers: int | None
    parameter_servers: int | None
    batch: str
    max_staleness: int | None

    @property
    def replicas(self) -> int | None:
        """Every worker has one replica."""
        return self.workers

    @property
    def updates_per_batch(self) -> int:
        """Updates that one global batch makes."""
        assert self.workers is not None
        return 1 if self.batch == "global" or self.max_staleness == 0 else self.workers


@dataclass
class Cluster:
    """Where a run's processes are: `local` (this machine), `env` (as torchrun or TF_CONFIG says) or `hosts`.

    timeout: seconds to wait for a peer. hosts, node and port are those of `hosts`: the addresses of the machines, the
    index of this one and the first port that the processes of a machine listen on.
    """

    name: str
    timeout: float
    hosts: list[str] | None
    node: int | None
    port: int | None


@dataclass
class EarlyStopping:
    """Training ends after `patience` evaluations that do not better `metric` by more than `min_delta`; null: never."""

    patience: int | None
    min_delta: float
    metric: str


@dataclass
class Train:
    """`epochs`, where set, takes the place of `steps`; `eval_every: null` evaluates at the end only.

    virtual_epoch_examples, where set, is what an epoch is, and an evaluation and a checkpoint come after each.
    """

    steps: int
    epochs: int | None
    global_batch_size: int
    max_length: int
    seed: int
    precision: str
    log_every: int
    eval_every: int | None
    checkpoint_every: int | None
    keep_checkpoints: int
    virtual_epoch_examples: int | None
    early_stopping: EarlyStopping
    max_restarts: int
    warmup_steps_untimed: int


@dataclass
class Config:
    """One run."""

    data: Any
    model: Any
    optimizer: Optimizer
    schedule: Schedule
    strategy: Any
    cluster: Cluster
    train: Train
    run_dir: str | None
    resume: str | None
    run_name: str | None
    cache_dir: str


TEXT = {"builtin_nli": BuiltinNli, "files": Files, "hub": Hub}
IMAGES = {"digits": Digits, "mnist": HubImages, "idx": Idx}
DATA = {**TEXT, **IMAGES}
MODEL = {"convnet": ConvNet}  # the others are a Pretrained or a Bert
STRATEGY = {
    "dp": Dp,
    "ddp": Ddp,
    "allreduce": AllReduce,
    "multiworker": MultiWorker,
    "parameter_server": ParameterServer,
}  # the others are a Strategy


def parse(composed: DictConfig) -> Config:
    """The composed Hydra config as a `Config`; raises UserError for a missing or mistyped value."""
    if composed.data.name not in DATA:
        raise UserError(f"data.name={composed.data.name}: no such kind of data; there are {', '.join(DATA)}")
    groups = {
        "data": DATA[composed.data.name],
        "model": Pretrained if "revision" in composed.model else MODEL.get(composed.model.name, Bert),
        "strategy": STRATEGY.get(composed.strategy.name, Strategy),
    }
    schema = OmegaConf.merge(
        OmegaConf.structured(Config), {name: OmegaConf.structured(groups[name]) for name in groups}
    )
    try:
        config = OmegaConf.to_object(OmegaConf.merge(schema, composed))
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}: has no value; give {error.full_key}=...") from error
    assert isinstance(config, Config)
    return config


def _package_directory(package: str, *parts: str) -> str:
    """The directory of an installed package's data, for conf/model/minilm.yaml."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        distribution = package.replace("_", "-")
        raise UserError(f"model.checkpoint: the package {distribution} is not installed; pip install {distribution}")
    return str(Path(found.origin).parent.joinpath(*parts))


def flat(config: Config) -> dict[str, Any]:
    """Every value by its key, as a user would type it."""

    def flatten(prefix: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {prefix: value}
        return {key: each for name in value for key, each in flatten(f"{prefix}.{name}", value[name]).items()}

    return {key: each for name, value in asdict(config).items() for key, each in flatten(name, value).items()}


def save(config: Config, path: Path) -> None:
    """Write the resolved config."""
    path.write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))


def load(path: Path) -> Config:
    """Read what `save` wrote."""
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return parse(loaded)
