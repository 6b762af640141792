"""Every check on a config's values: a mistake in it is found here, before any process starts."""

import math
from functools import reduce
from typing import Any

from common.config.schema import IMAGES, STRATEGIES, TEXT, Bert, Cluster, Config, ConvNet, Ddp
from common.errors import UserError
from common.hardware import visible_gpus

COMMANDS = {"torch": "python -m torch_impl.train", "tf": "python -m tf_impl.train"}
GROUPS = ("ddp", "allreduce", "multiworker", "parameter_server")  # strategies of several processes
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
CHOICES = {
    "optimizer.name": ("adamw", "adam", "sgd"),
    "optimizer.semantics": ("aligned", "native"),
    "schedule.name": ("constant", "linear", "cosine"),
    "train.precision": ("float32", "bfloat16", "float64"),
    "train.early_stopping.metric": ("loss", "accuracy"),
    "cluster.name": ("local", "env", "hosts"),
    "strategy.loss": ("gathered", "in_forward", "criterion"),
    "strategy.comm_hook": ("none", "fp16", "bf16", "powersgd"),
    "strategy.algorithm": ("gather_broadcast", "all_to_all", "ring", "recursive_doubling", "native"),
    "strategy.communication": ("auto", "ring", "nccl"),
    "strategy.batch": ("replica", "global"),
}
AT_LEAST = {
    "train.steps": 1,
    "train.epochs": 1,
    "train.global_batch_size": 1,
    "train.max_length": 3,
    "train.seed": 0,
    "train.log_every": 1,
    "train.eval_every": 1,
    "train.checkpoint_every": 1,
    "train.keep_checkpoints": 1,
    "train.virtual_epoch_examples": 1,
    "train.early_stopping.patience": 1,
    "train.early_stopping.min_delta": 0.0,
    "train.max_restarts": 0,
    "train.warmup_steps_untimed": 0,
    "strategy.replicas": 1,
    "strategy.workers": 1,
    "strategy.parameter_servers": 1,
    "strategy.max_staleness": 0,
    "strategy.output_device": 0,
    "strategy.accumulate": 1,
    "strategy.bytes_per_pack": 0,
    "cluster.timeout": 1.0,
    "cluster.node": 0,
    "schedule.warmup_steps": 0,
    "schedule.total_steps": 1,
    "optimizer.learning_rate": 0.0,
    "optimizer.weight_decay": 0.0,
    "optimizer.epsilon": 0.0,
    "data.train_examples": 3,
    "data.validation_examples": 3,
    "model.layers": 1,
    "model.hidden_size": 1,
    "model.heads": 1,
    "model.intermediate_size": 1,
    "model.max_vocabulary": 100,
}


def validate(config: Config, framework: str) -> None:
    """Check every value and fill in `strategy.replicas`; `framework` is "torch" or "tf". Raises UserError."""
    _check_strategy(config.strategy, config.cluster, framework)
    check(config)
    _check_cluster(config.cluster, config.strategy)
    check_batch_size(config)


def check_batch_size(config: Config) -> None:
    """Every replica must have an example of a whole global batch."""
    if config.train.global_batch_size < config.strategy.replicas:
        count = "workers" if hasattr(config.strategy, "workers") else "replicas"
        raise UserError(
            f"train.global_batch_size={config.train.global_batch_size}: smaller than the {config.strategy.replicas} "
            f"{count}; raise it or lower strategy.{count}"
        )


def check(config: Config) -> None:
    """Check every value that does not depend on the framework. Raises UserError."""
    for key, choices in CHOICES.items():
        if (value := _value(config, key, choices[0])) not in choices:
            raise UserError(f"{key}={value}: no such choice; there are {', '.join(choices)}")
    for key, least in AT_LEAST.items():
        if (value := _value(config, key)) is not None and not least <= value < math.inf:
            raise UserError(f"{key}={value}: must be at least {least} and finite")
    for key in ("optimizer.momentum", "optimizer.beta1", "optimizer.beta2", "model.dropout"):
        if (value := _value(config, key)) is not None and not 0 <= value < 1:
            raise UserError(f"{key}={value}: must be at least 0 and less than 1")
    for key in ("beta1", "beta2", "epsilon"):
        if config.optimizer.name != "sgd" and getattr(config.optimizer, key) is None:
            raise UserError(f"optimizer.{key}=null: {config.optimizer.name} needs a value")
    if config.optimizer.max_grad_norm is not None and not config.optimizer.max_grad_norm > 0:
        raise UserError(
            f"optimizer.max_grad_norm={config.optimizer.max_grad_norm}: must be above 0, or null for no clipping"
        )
    if isinstance(config.model, Bert):
        _check_bert(config.model, config.train.max_length)
    if isinstance(config.model, ConvNet):
        _check_convnet(config.model)
    _check_kinds(config.data.name, config.model)
    train = config.train
    if train.early_stopping.patience is not None and train.eval_every is None and train.virtual_epoch_examples is None:
        raise UserError("train.early_stopping.patience: counts evaluations; give train.eval_every=... too")
    if config.resume == "auto" and config.run_dir is None:
        raise UserError("resume=auto: which run is to go on? Give run_dir=...")
    if config.train.max_restarts and config.cluster.name != "local":
        raise UserError(
            f"train.max_restarts={config.train.max_restarts}: is for one machine; on several start every command again "
            "with resume=auto"
        )
    if config.run_name is not None and (not config.run_name.strip() or {"/", "\\"} & set(config.run_name)):
        raise UserError(f"run_name={config.run_name}: a name without path separators; use run_dir=PATH for a place")


def _check_strategy(strategy: Any, cluster: Cluster, framework: str) -> None:
    mine = STRATEGIES[framework]
    if strategy.name not in mine:
        other = "tf" if framework == "torch" else "torch"
        if strategy.name in STRATEGIES[other]:
            title = {"torch": "PyTorch", "tf": "TensorFlow"}[other]
            raise UserError(f"strategy={strategy.name}: is {title}'s; run {COMMANDS[other]} strategy={strategy.name}")
        raise UserError(f"strategy={strategy.name}: no such strategy; {framework}_impl has {', '.join(mine)}")
    gpus = visible_gpus()
    count = "workers" if hasattr(strategy, "workers") else "replicas"
    if strategy.name == "single":
        if strategy.replicas not in (None, 1):
            raise UserError(f"strategy.replicas={strategy.replicas}: strategy=single has 1; choose another strategy")
        strategy.replicas = 1
    elif strategy.replicas is None:
        setattr(strategy, count, (gpus or 2) * (len(cluster.hosts) if cluster.hosts else 1))
    if getattr(strategy, "parameter_servers", 0) is None:
        strategy.parameter_servers = 1
    if gpus and cluster.name == "local" and strategy.replicas > gpus:
        raise UserError(
            f"strategy.{count}={strategy.replicas}: more than the {gpus} visible GPU(s); lower it, or set "
            "CUDA_VISIBLE_DEVICES= (empty) to train on the CPU"
        )
    if getattr(strategy, "output_device", 0) >= max(strategy.replicas, 1):
        raise UserError(
            f"strategy.output_device={strategy.output_device}: no such replica; there are 0 to {strategy.replicas - 1}"
        )
    if (value := getattr(strategy, "bucket_cap_mb", None)) is not None and not 0 < value < math.inf:
        raise UserError(f"strategy.bucket_cap_mb={value}: must be above 0 and finite")
    if isinstance(strategy, Ddp) and strategy.static_graph and strategy.accumulate > 1:
        raise UserError(
            "strategy.static_graph=true: PyTorch's DDP cannot accumulate with it; set strategy.accumulate=1 or leave it"
        )


def _check_cluster(cluster: Cluster, strategy: Any) -> None:
    if cluster.name != "hosts":
        return
    for key in ("hosts", "node", "port"):
        if getattr(cluster, key) in (None, []):
            raise UserError(f"cluster.{key}: has no value; give cluster.{key}=...")
    assert cluster.hosts is not None and cluster.node is not None and cluster.port is not None
    if strategy.name not in GROUPS:
        raise UserError(f"cluster=hosts: strategy={strategy.name} is one process; use {', '.join(GROUPS)}")
    if cluster.node >= len(cluster.hosts):
        raise UserError(f"cluster.node={cluster.node}: there are hosts 0 to {len(cluster.hosts) - 1}")
    if len(set(cluster.hosts)) < len(cluster.hosts):
        raise UserError("cluster.hosts: a host is named twice; name each once, and raise the replicas or workers")
    if not 1024 <= cluster.port <= 65000:
        raise UserError(f"cluster.port={cluster.port}: must be between 1024 and 65000")
    if strategy.replicas < len(cluster.hosts) and strategy.name != "parameter_server":
        count = "workers" if hasattr(strategy, "workers") else "replicas"
        raise UserError(
            f"strategy.{count}={strategy.replicas}: fewer than the {len(cluster.hosts)} hosts; raise it or name fewer"
        )


def _check_bert(model: Bert, max_length: int) -> None:
    if model.hidden_size % model.heads:
        raise UserError(f"model.heads={model.heads}: must divide model.hidden_size={model.hidden_size}")
    if model.hidden_act not in ACTIVATIONS:
        raise UserError(f"model.hidden_act={model.hidden_act}: no such activation; there are {', '.join(ACTIVATIONS)}")
    check_max_length(max_length, model.max_positions)


def _check_convnet(model: ConvNet) -> None:
    if len(model.channels) != 2 or min(model.channels) < 1:
        raise UserError(f"model.channels={model.channels}: must be two numbers, each at least 1")
    if model.kernel_size < 1 or model.kernel_size % 2 == 0:
        raise UserError(f"model.kernel_size={model.kernel_size}: must be odd and at least 1")


def _check_kinds(data: str, model: Any) -> None:
    """A convolutional network reads images, a BERT text."""
    if data in IMAGES and not isinstance(model, ConvNet):
        raise UserError(f"data={data}: images, but model={model.name} reads text; set model=convnet or another data=")
    if data in TEXT and isinstance(model, ConvNet):
        raise UserError(f"data={data}: text, but model=convnet reads images; set data to one of {', '.join(IMAGES)}")


def check_max_length(max_length: int, positions: int) -> None:
    """`train.max_length` tokens must fit the model's positions."""
    if max_length > positions:
        raise UserError(f"train.max_length={max_length}: beyond the model's {positions} positions; lower it")


def _value(config: Config, key: str, absent: Any = None) -> Any:
    """The value of a key, or `absent` where a strategy, a model or data of this kind has no such key."""
    section, *names = key.split(".")
    return reduce(lambda value, name: getattr(value, name, absent), names, getattr(config, section))
