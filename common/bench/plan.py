"""From the definitions of contestants to their commands: checked and prepared before the first one starts."""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.bench.settings import LINK, Definition, Settings
from common.bench.turns import Command
from common.cluster.discovery import compose_config
from common.cluster.network import find_loopback_interface
from common.cluster.ports import reserve_ports
from common.config.data import BuiltinNliSettings, DataSettings, FilesSettings
from common.config.models import BertSettings
from common.config.overrides import normalize_arguments
from common.config.schema import Config
from common.data.text import builtin_nli
from common.data.text.token_cache import TokenCache
from common.errors import UserError
from common.hardware import count_cores
from common.models.bert import count_useful_flops
from common.models.spec import count_parameters
from common.run.inputs import PreparedInputs
from common.run.prepare import prepare_inputs
from common.run_module import module_command

PRECISIONS = ("float32", "bfloat16")  # of the scripts
COLUMNS = ("premise", "hypothesis", "label")
MATRICES = "matrix_rate"  # the script that multiplies matrices
ENDLESS = ["train.steps=1000000", "train.epochs=null", "train.eval_every=null", "train.checkpoint_every=null"]
PATIENT = ["cluster.timeout=3600"]  # seconds: a contestant is stopped for longer than a peer is usually waited for


@dataclass(frozen=True)
class Planned:
    """A contestant: its definition, the config of what it trains, and how to start it.

    useful_flops: the mean of the training examples; None where the model's are not known. tokens: the mean of the
    training examples. gradient_bytes: of all parameters, float32.
    """

    definition: Definition
    config: Config
    command: Command
    useful_flops: float | None
    tokens: float | None
    gradient_bytes: int

    @property
    def is_training(self) -> bool:
        """Whether it trains, and does not measure the device."""
        return self.definition.script not in (MATRICES, LINK)


def plan(settings: Settings, overrides: Sequence[str], output: Path) -> list[Planned]:
    """The contestants, and for each precision one that multiplies matrices of the reference's shapes.

    Raises UserError.
    """
    definitions = {name: settings.definitions[name] for name in settings.contestants}
    configs = {
        name: compose_config(each.framework, normalize_arguments([*ENDLESS, *overrides, *each.overrides]), {})
        for name, each in definitions.items()
    }
    for name, definition in definitions.items():
        _check_script(name, definition, configs[name])
    with reserve_ports(2 * len(definitions)) as reserved:
        ports = iter(reserved)
    planned: dict[str, Planned] = {}
    models: dict[str, dict[str, Any]] = {}  # their config.json
    for name, definition in definitions.items():
        config, prepared = prepare_inputs(configs[name], None)
        command = _command(name, definition, config, prepared, overrides, output, next(ports))
        flops, tokens = _mean_flops_and_tokens(config, prepared)
        models[name] = prepared.initial.hf_config
        gradient_bytes = 4 * count_parameters(config.model, models[name])
        planned[name] = Planned(definition, config, command, flops, tokens, gradient_bytes)
    reference, model = planned[settings.reference], models[settings.reference]
    precisions = dict.fromkeys(each.config.train.product_precision for each in planned.values() if each.is_training)
    known = precisions if reference.tokens is not None else ()
    matrices = [_matrices(reference, model, precision, output, next(ports)) for precision in known]
    return [*planned.values(), *matrices]


def _command(
    name: str,
    definition: Definition,
    config: Config,
    prepared: PreparedInputs,
    overrides: Sequence[str],
    output: Path,
    port: int,
) -> Command:
    directory = output / name
    if definition.script is None:
        profile = f"train.profile={definition.framework in config.strategy.profiles}"
        own = [*ENDLESS, *PATIENT, profile, *overrides, *definition.overrides, f"run_dir={directory}"]
        train = module_command(f"{definition.framework}_impl.train", *own)
        return Command(name, train, directory, cores=definition.cores)
    if definition.script == LINK:
        return _script(name, definition, config, directory, [f"--output={directory}"], port)
    return _script(name, definition, config, directory, _arguments(config, prepared, directory, output), port)


def _check_script(name: str, definition: Definition, config: Config) -> None:
    if definition.script in (None, LINK):
        return
    module = definition.script_module
    if importlib.util.find_spec(module) is None:
        key = f"bench.definitions.{name}.script={definition.script}"
        raise UserError(f"{key}: no module {module}; name a file of {module.rpartition('.')[0].replace('.', '/')}")
    if not isinstance(config.data, BuiltinNliSettings) and not _is_jsonl(config.data):
        columns = ", ".join(COLUMNS)
        raise UserError(f"{name}: reads data=builtin_nli, or one .jsonl file with the columns {columns}; leave it out")
    if config.train.matmul_precision is not None:
        raise UserError(f"{name}: has no train.matmul_precision; leave it out")
    if config.train.precision not in PRECISIONS:
        raise UserError(f"{name}: has no train.precision={config.train.precision}; leave it out")


def _is_jsonl(data: DataSettings) -> bool:
    """Whether the examples are one file that the scripts can read."""
    if not isinstance(data, FilesSettings) or (data.premise, data.hypothesis, data.label) != COLUMNS:
        return False
    return data.train.endswith(".jsonl") and Path(data.train).is_file()


def _arguments(config: Config, prepared: PreparedInputs, directory: Path, output: Path) -> list[str]:
    train = config.train
    pairs: dict[str, Any] = {
        "weights": prepared.initial.directory.resolve(),
        "data": _data(config, output),
        "output": directory,
        "replicas": config.strategy.world_size,
        "global-batch-size": train.global_batch_size,
        "max-length": train.max_length,
        "learning-rate": config.optimizer.learning_rate,
        "precision": train.precision,
        "seed": train.seed,
    }
    return [f"--{key}={value}" for key, value in pairs.items()]


def _data(config: Config, output: Path) -> Path:
    """The training examples as a JSONL file; those of the built-in corpus are written to one."""
    if isinstance(config.data, FilesSettings):
        return Path(config.data.train).resolve()
    assert isinstance(config.data, BuiltinNliSettings)
    path = output / "train.jsonl"
    if not path.exists():
        data = config.data
        examples, _ = builtin_nli.generate(data.seed, data.train_examples, data.validation_examples)
        path.write_text("".join(json.dumps(dict(zip(COLUMNS, each, strict=True))) + "\n" for each in examples))
    return path.resolve()


def _mean_flops_and_tokens(config: Config, prepared: PreparedInputs) -> tuple[float | None, float | None]:
    if not isinstance(prepared.cache, TokenCache) or not isinstance(config.model, BertSettings):
        return None, None
    split = prepared.cache.train
    lengths = split.lengths(np.arange(len(split)))
    return float(count_useful_flops(prepared.initial.hf_config, lengths).mean()), float(lengths.mean())


def _matrices(reference: Planned, model: dict[str, Any], precision: str, output: Path, port: int) -> Planned:
    """As many processes as the reference has replicas; each multiplies what a replica multiplies in a step."""
    assert reference.tokens is not None
    name = f"{MATRICES}_{precision}"
    train = replace(reference.config.train, precision=precision, matmul_precision=None)
    config = replace(reference.config, train=train)
    pairs = {
        "output": output / name,
        "tokens": round(reference.tokens * config.train.global_batch_size / config.strategy.world_size),
        "hidden": model["hidden_size"],
        "intermediate": model["intermediate_size"],
        "precision": precision,
    }
    definition = Definition("torch", MATRICES)
    arguments = [f"--{key}={value}" for key, value in pairs.items()]
    command = _script(name, definition, config, output / name, arguments, port)
    return Planned(definition, config, command, None, None, 0)


def _script(
    name: str, definition: Definition, config: Config, directory: Path, arguments: Sequence[str], port: int
) -> Command:
    """PyTorch's scripts are started by torchrun, a process for each replica; TensorFlow's are one process."""
    module, replicas = definition.script_module, config.strategy.world_size
    if definition.framework == "tf":
        return Command(
            name, module_command(module, *arguments), directory, {"TF_CPP_MIN_LOG_LEVEL": "2"}, definition.cores
        )
    torchrun = [f"--nproc-per-node={replicas}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    _, *script = module_command(module, *arguments)
    environment = {
        "OMP_NUM_THREADS": str(max(1, count_cores() // replicas)),
        "GLOO_SOCKET_IFNAME": find_loopback_interface(),
    }
    return Command(
        name,
        module_command("torch.distributed.run", *torchrun, *script),
        directory,
        environment,
        definition.cores,
    )
