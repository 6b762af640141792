"""Checks of the values of a config. They find a mistake before any process starts.

A resolved config is one whose open values, such as the number of replicas, are filled in.
"""

from importlib.util import find_spec

from common.config.averages import check_averages
from common.config.data import DATA
from common.config.keys import iterate_keys
from common.config.layout_optimizers import MuonSettings
from common.config.metric_checks import check_followed_value, check_metrics
from common.config.models import MODELS, CustomModelSettings
from common.config.schedule_checks import check_cycled_momentum, check_plateau
from common.config.schema import AVERAGE, Config
from common.config.strategies import (
    COMMANDS,
    STRATEGIES,
    TITLES,
    DdpSettings,
    FsdpSettings,
    ParameterServerSettings,
    list_strategies,
)
from common.config.stream_checks import check_stream
from common.config.task_checks import check_compares_examples, check_named_labels
from common.config.tasks import CustomTaskSettings
from common.errors import UserError
from common.hardware import count_visible_gpus, has_cpp_compiler

TRACKERS = ("mlflow", "wandb")  # each is also the name of a Python module
NO_GPU = "train.device=cuda: there is no visible NVIDIA GPU; set it to auto or cpu"


def check_config(config: Config, framework: str | None = None) -> None:
    """Check all values that do not depend on the hosts. Raise UserError.

    Args:
        config: a config that need not be resolved.
        framework: "torch" or "tf" if this framework is about to train; None to check for both.
    """
    if framework is not None:
        _check_framework(config, framework)
    for name, key, value in iterate_keys(config):
        if value is not None:
            key.check(name, value)
    config.data.check()
    config.optimizer.check()
    config.schedule.check()
    config.model.check(config.train.max_length)
    config.task.check()
    config.cluster.check()
    config.train.check()
    _check_averages(config)
    check_stream(config)
    _check_data_fits_model(config)
    _check_task(config)
    check_metrics(config)
    check_followed_value(config, "train.early_stopping.metric", config.train.early_stopping.metric)
    check_plateau(config)
    check_cycled_momentum(config)
    _check_micro_batches(config)
    _check_model_support(config)
    _check_trackers(config)
    _check_run_options(config)


def _check_framework(config: Config, framework: str) -> None:
    """Raise UserError if this framework cannot train with the config."""
    strategy = config.strategy
    if framework not in strategy.sides:
        (other_framework,) = strategy.sides  # the strategy exists only there
        raise UserError(
            f"strategy={strategy.kind}: a {TITLES[other_framework]} strategy; run it with {COMMANDS[other_framework]} "
            f"strategy={strategy.kind}"
        )
    for section, purpose in (("model", "a model"), ("task", "losses")):
        settings = getattr(config, section)
        if isinstance(settings, CustomModelSettings):
            is_missing = framework not in settings.factories
        else:
            is_missing = isinstance(settings, CustomTaskSettings) and getattr(settings, framework) is None
        if is_missing:
            raise UserError(
                f"{section}.{framework}: has no value; {COMMANDS[framework]} needs {purpose} of yours there"
            )
    if config.train.compile:
        _check_compilation(config, framework)
    if framework == "tf" and isinstance(strategy, ParameterServerSettings):
        _check_shared_variables(config, strategy)
    if isinstance(strategy, FsdpSettings) and config.optimizer.uses_layout:
        raise UserError(
            f"optimizer.kind={config.optimizer.kind}: needs whole parameters, but a rank of strategy=fsdp has "
            "parts of them; choose strategy=zero or ddp, or another optimizer"
        )
    is_native_muon = isinstance(config.optimizer, MuonSettings) and config.optimizer.semantics == "native"
    if is_native_muon and framework == "tf" and config.train.precision == "float64":
        raise UserError(
            "train.precision=float64: Keras's own Muon fails with it; set it to float32, or optimizer.semantics to "
            "keras"
        )
    if config.train.profile and framework not in strategy.profiles:
        raise UserError(
            f"train.profile=true: {TITLES[framework]}'s profiler may crash with strategy={strategy.kind}; set it to "
            "false"
        )


def _check_shared_variables(config: Config, strategy: ParameterServerSettings) -> None:
    """Raise UserError if TensorFlow's parameter servers cannot compute the update."""
    optimizer = config.optimizer
    if optimizer.uses_layout:
        raise UserError(
            f"optimizer.kind={optimizer.kind}: needs whole parameters, but TensorFlow's parameter servers hold parts; "
            "choose another optimizer or another strategy"
        )
    if not strategy.synchronous and optimizer.semantics != "native" and not optimizer.has_fused_operation:
        raise UserError(
            f"optimizer.kind={optimizer.kind}: TensorFlow's asynchronous workers need an operation that locks the "
            "variables, which only the plain aligned sgd, adam and adamw have; choose one, or strategy.max_staleness=0"
        )
    if not strategy.synchronous and config.schedule.sets_momentum:
        raise UserError(
            "schedule.cycle_momentum=true: the operations of TensorFlow's asynchronous workers have a fixed momentum; "
            "set it to false, or strategy.max_staleness=0"
        )
    if optimizer.clip_norm is not None:
        raise UserError(
            f"optimizer.clip_norm={optimizer.clip_norm:g}: TensorFlow's parameter servers hold parts of a parameter; "
            "use optimizer.max_grad_norm"
        )


def _check_compilation(config: Config, framework: str) -> None:
    if framework not in config.strategy.compiles:
        others = [kind for kind in list_strategies(framework) if framework in STRATEGIES[kind].compiles]
        raise UserError(
            f"train.compile=true: not supported by {TITLES[framework]}'s strategy={config.strategy.kind}; set it to "
            f"false, or choose a strategy of {', '.join(others)}"
        )
    if framework == "tf" and config.task.compares_examples:
        raise UserError(f"train.compile=true: XLA cannot compute task={config.task.kind}; set it to false")
    if framework == "tf" and config.model.has_global_batch_norm:
        raise UserError("train.compile=true: XLA cannot sum over replicas; set it or model.sync_batch_norm to false")
    if framework == "torch" and not has_cpp_compiler():
        raise UserError("train.compile=true: PyTorch needs a C++ compiler for it; install g++, or name one by CXX=...")


def _check_data_fits_model(config: Config) -> None:
    """Raise UserError if the model reads another kind of input than the data has, such as images instead of text."""
    data, model = config.data, config.model
    if data.reads == model.reads:
        return
    models = [kind for kind, schema in MODELS.items() if schema.reads == data.reads]
    data_kinds = [kind for kind, schema in DATA.items() if schema.reads == model.reads]
    remedies = {"a model of the kind": models, "data of the kind": data_kinds}
    choices = ", or ".join(f"{remedy} {' or '.join(kinds)}" for remedy, kinds in remedies.items() if kinds)
    raise UserError(
        f"data.kind={data.kind}: {data.reads}, but model={model.name} reads {model.reads}; choose {choices}"
    )


def _check_task(config: Config) -> None:
    task, model = config.task, config.model
    if task.kind not in model.tasks:
        raise UserError(
            f"task={task.kind}: model={model.name} learns {' or '.join(model.tasks)} only; remove it or choose another"
        )
    if task.names_labels:
        check_named_labels(config)


def _check_averages(config: Config) -> None:
    """Raise UserError if averages of the weights do not fit together, or do not fit the run."""
    train, strategy = config.train, config.strategy
    has_average = AVERAGE in config.slots
    for key in ("evaluate_average", "evaluate_both"):
        if getattr(train, key) and not has_average:
            raise UserError(f"train.{key}=true: the run keeps no average; give ema.decay=... or swa.start_step=...")
    if has_average and isinstance(strategy, ParameterServerSettings) and not strategy.synchronous:
        key = "ema.decay" if config.ema.decay is not None else "swa.start_step"
        raise UserError(f"{key}: asynchronous updates have no order to average in; set strategy.max_staleness=0")
    if train.epochs is None:
        check_averages(config.ema, config.swa, train.steps)


def _check_micro_batches(config: Config) -> None:
    """Raise UserError if the two names of the number of micro-batches disagree, or if DDP cannot accumulate."""
    strategy, micro_batches = config.strategy, config.train.micro_batches
    if not isinstance(strategy, DdpSettings):
        return
    if 1 not in (strategy.accumulate, micro_batches) and strategy.accumulate != micro_batches:
        raise UserError(
            f"strategy.accumulate={strategy.accumulate} and train.micro_batches={micro_batches} disagree; give one of "
            "them"
        )
    if strategy.static_graph and config.micro_batches > 1:
        raise UserError(
            "strategy.static_graph=true: PyTorch's DDP cannot accumulate with it; set train.micro_batches=1"
        )


def _check_model_support(config: Config) -> None:
    """Raise UserError if the model does not support what the config asks for."""
    model, train = config.model, config.train
    if train.padding == "unpadded" and not model.supports_unpadded:
        raise UserError(
            f"train.padding=unpadded: model={model.name} computes on padded batches only; choose micro_batches or auto"
        )
    if model.has_global_batch_norm:
        _check_no_micro_batches(config)
    if config.task.compares_examples:
        check_compares_examples(config)
    if model.has_aligned_dropout and not model.supports_aligned_dropout:
        raise UserError(
            f"model.dropout_semantics=aligned: model={model.name} has native dropout only; set it to native"
        )
    if train.matmul_precision not in (None, *model.matmul_precisions):
        raise UserError(
            f"train.matmul_precision={train.matmul_precision}: not supported by model={model.name}; remove it"
        )


def _check_no_micro_batches(config: Config) -> None:
    problem = "BatchNorm would have the statistics of micro-batches;"
    if config.train.padding == "micro_batches":
        raise UserError(f"train.padding=micro_batches: {problem} choose global, or model.sync_batch_norm=false")
    if config.micro_batches > 1:
        raise UserError(
            f"train.micro_batches={config.micro_batches}: {problem} set it to 1, or model.sync_batch_norm to false"
        )


def _check_trackers(config: Config) -> None:
    for name in config.trackers:
        if name not in TRACKERS:
            raise UserError(f"trackers=[{name}]: no such tracker; there are {', '.join(TRACKERS)}")
        if find_spec(name) is None:
            raise UserError(f"trackers=[{name}]: is not installed; pip install 'lockstep[{name}]'")


def _check_run_options(config: Config) -> None:
    if config.resume == "auto" and config.run_dir is None:
        raise UserError("resume=auto: resumes the run in run_dir; give run_dir=...")
    if config.run_name is not None and (not config.run_name.strip() or {"/", "\\"} & set(config.run_name)):
        raise UserError(
            f"run_name={config.run_name}: must be a name without path separators; set run_dir=PATH for a directory"
        )


def count_gpus(device: str, gpus: int | None = None) -> int:
    """Return the number of GPUs that a host gives to a run. Raise UserError if the run needs some, and there are none.

    Args:
        device: the value of `train.device`.
        gpus: the number of GPUs of a host; None for the visible ones of this machine.
    """
    gpus = count_visible_gpus() if gpus is None else gpus
    if device == "cuda" and not gpus:
        raise UserError(NO_GPU)
    return 0 if device == "cpu" else gpus


def check_replicas(config: Config, hosts: int, has_external_hosts: bool = False) -> None:
    """Check a resolved config against the GPUs of this machine and the number of hosts. Raise UserError.

    Args:
        config: a resolved config.
        hosts: the number of hosts.
        has_external_hosts: whether another program chooses the hosts, so that this machine's GPUs are not the run's.
    """
    strategy, replicas = config.strategy, config.strategy.world_size
    strategy.check()
    check_stream(config, hosts)
    is_this_machine = hosts == 1 and not has_external_hosts
    if is_this_machine and (gpus := count_gpus(config.train.device)) and replicas > gpus:
        raise UserError(
            f"strategy.replicas={replicas}: more than the {gpus} visible GPU(s); lower it, or set train.device=cpu"
        )
    if hosts > 1 and strategy.one_process:
        others = [kind for kind in list_strategies() if not STRATEGIES[kind].one_process]
        raise UserError(
            f"cluster={config.cluster.kind}: strategy={strategy.kind} is one process; use {', '.join(others)}"
        )
    if hosts > strategy.processes or (hosts > replicas and "ps" not in strategy.roles):  # "ps": parameter servers
        raise UserError(f"strategy.replicas={replicas}: fewer than the {hosts} hosts; raise it or name fewer")
    if config.train.global_batch_size < replicas:
        raise UserError(
            f"train.global_batch_size={config.train.global_batch_size}: smaller than the {replicas} replicas; raise it "
            "or lower strategy.replicas"
        )
