"""Every check on a config's values: a mistake in it is found here, before any process starts."""

from importlib.util import find_spec

from common.config.data import DATA
from common.config.keys import iterate_keys
from common.config.models import MODELS, CustomModelSettings
from common.config.schema import Config
from common.config.strategies import COMMANDS, STRATEGIES, TITLES, list_strategies
from common.config.tasks import CustomTaskSettings
from common.errors import UserError
from common.hardware import count_visible_gpus, has_cpp_compiler

TRACKERS = ("mlflow", "wandb")  # the names of their modules, too


def check_config(config: Config, framework: str | None = None) -> None:
    """Check every value that does not depend on the hosts. Raises UserError.

    framework: "torch" or "tf", where one is to train.
    """
    if framework is not None:
        _check_framework(config, framework)
    for name, key, value in iterate_keys(config):
        if value is not None:
            key.check(name, value)
    config.data.check()
    config.optimizer.check()
    config.model.check(config.train.max_length)
    config.task.check()
    config.cluster.check()
    config.train.check()
    _check_data_fits_model(config)
    _check_task(config)
    if config.train.padding == "unpadded" and not config.model.supports_unpadded:
        raise UserError(
            f"train.padding=unpadded: model={config.model.name} computes on padded batches only; choose micro_batches "
            "or auto"
        )
    if config.model.has_global_batch_norm:
        _check_no_micro_batches(config)
    if config.model.has_aligned_dropout and not config.model.supports_aligned_dropout:
        raise UserError(
            f"model.dropout_semantics=aligned: model={config.model.name} has native dropout only; set it to native"
        )
    if config.train.matmul_precision not in (None, *config.model.matmul_precisions):
        raise UserError(
            f"train.matmul_precision={config.train.matmul_precision}: model={config.model.name} has no such "
            "mode; leave it"
        )
    for name in config.trackers:
        if name not in TRACKERS:
            raise UserError(f"trackers=[{name}]: no such tracker; there are {', '.join(TRACKERS)}")
        if find_spec(name) is None:
            raise UserError(f"trackers=[{name}]: is not installed; pip install 'lockstep[{name}]'")
    if config.resume == "auto" and config.run_dir is None:
        raise UserError("resume=auto: resumes the run in run_dir; give run_dir=...")
    if config.run_name is not None and (not config.run_name.strip() or {"/", "\\"} & set(config.run_name)):
        raise UserError(f"run_name={config.run_name}: a name without path separators; use run_dir=PATH for a place")


def _check_framework(config: Config, framework: str) -> None:
    kind, sides = config.strategy.kind, config.strategy.sides
    if framework not in sides:
        (other,) = sides
        raise UserError(f"strategy={kind}: is {TITLES[other]}'s; run {COMMANDS[other]} strategy={kind}")
    for section, name in (("model", "a model"), ("task", "losses")):
        named = getattr(config, section)
        if isinstance(named, CustomModelSettings | CustomTaskSettings) and getattr(named, framework) is None:
            raise UserError(f"{section}.{framework}: has no value; {COMMANDS[framework]} needs {name} of yours there")
    if config.train.compile and framework not in config.strategy.compiles:
        others = [each for each in list_strategies(framework) if framework in STRATEGIES[each].compiles]
        raise UserError(
            f"train.compile=true: {TITLES[framework]}'s strategy={kind} cannot; set it to false, or choose a "
            f"strategy of {', '.join(others)}"
        )
    if config.train.profile and framework not in config.strategy.profiles:
        raise UserError(
            f"train.profile=true: {TITLES[framework]}'s profiler may crash with strategy={kind}; set it to false"
        )
    if config.train.compile and framework == "tf" and config.model.has_global_batch_norm:
        raise UserError("train.compile=true: XLA cannot sum over replicas; set it or model.sync_batch_norm to false")
    if config.train.compile and framework == "torch" and not has_cpp_compiler():
        raise UserError("train.compile=true: PyTorch needs a C++ compiler for it; install g++, or name one by CXX=...")


def _check_no_micro_batches(config: Config) -> None:
    wrong = "BatchNorm would have the statistics of micro-batches;"
    if config.train.padding == "micro_batches":
        raise UserError(f"train.padding=micro_batches: {wrong} choose global, or model.sync_batch_norm=false")
    accumulate = getattr(config.strategy, "accumulate", 1)
    if accumulate > 1:
        raise UserError(f"strategy.accumulate={accumulate}: {wrong} set it to 1, or model.sync_batch_norm to false")


def _check_task(config: Config) -> None:
    task, model, metric = config.task, config.model, config.train.early_stopping.metric
    if task.kind not in model.tasks:
        raise UserError(f"task={task.kind}: model={model.name} learns {' or '.join(model.tasks)} only; leave it")
    if config.train.early_stopping.patience is not None and metric not in ("loss", task.metric):
        raise UserError(f"train.early_stopping.metric={metric}: task={task.kind} has no {metric}; choose loss")


def check_replicas(config: Config, hosts: int, started: bool = False) -> None:
    """Check a resolved config against the machine and the number of hosts. Raises UserError.

    started: by a scheduler, which knows how many hosts there are.
    """
    strategy, replicas = config.strategy, config.strategy.world_size
    strategy.check()
    gpus = count_visible_gpus()
    if gpus and hosts == 1 and not started and replicas > gpus:
        raise UserError(
            f"strategy.replicas={replicas}: more than the {gpus} visible GPU(s); lower it, or set "
            "CUDA_VISIBLE_DEVICES= (empty) to train on the CPU"
        )
    if hosts > 1 and strategy.one_process:
        several = [kind for kind in list_strategies() if not STRATEGIES[kind].one_process]
        raise UserError(
            f"cluster={config.cluster.kind}: strategy={strategy.kind} is one process; use {', '.join(several)}"
        )
    if hosts > strategy.processes or (hosts > replicas and "ps" not in strategy.roles):
        raise UserError(f"strategy.replicas={replicas}: fewer than the {hosts} hosts; raise it or name fewer")
    if config.train.global_batch_size < replicas:
        raise UserError(
            f"train.global_batch_size={config.train.global_batch_size}: smaller than the {replicas} replicas; raise it "
            "or lower strategy.replicas"
        )


def _check_data_fits_model(config: Config) -> None:
    data, model = config.data, config.model
    if data.reads != model.reads:
        models = [kind for kind, schema in MODELS.items() if schema.reads == data.reads]
        kinds = [kind for kind, schema in DATA.items() if schema.reads == model.reads]
        remedies = {"a model of the kind": models, "data of the kind": kinds}
        choose = ", or ".join(f"{what} {' or '.join(found)}" for what, found in remedies.items() if found)
        raise UserError(
            f"data.kind={data.kind}: {data.reads}, but model={model.name} reads {model.reads}; choose {choose}"
        )
