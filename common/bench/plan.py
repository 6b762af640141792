"""Plan of a benchmark: the commands of all contestants, checked and prepared before the first one starts.

A contestant is a run of Lockstep, or a script that trains the same model with another library. Two further kinds of
scripts measure the machine itself: how fast it multiplies matrices, and how fast two processes sum gradients.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.bench.contestant import ContestantCommand
from common.bench.custom_scripts import CUSTOM, build_custom_arguments, check_custom
from common.bench.options import LINK_SCRIPT, BenchOptions, ContestantDefinition
from common.cluster.discovery import compose_config
from common.cluster.network import find_loopback_interface
from common.cluster.ports import reserve_ports
from common.config.data import BuiltinNliSettings, DataSettings, FilesSettings
from common.config.models import BertSettings, CustomModelSettings
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

SCRIPT_PRECISIONS = ("float32", "bfloat16")
COLUMNS = ("premise", "hypothesis", "label")  # columns of the data files that scripts can read
MATRICES = "matrix_rate"  # the script that multiplies matrices
# Overrides that make a contestant only train until the benchmark ends it
ENDLESS = ["train.steps=1000000", "train.epochs=null", "train.eval_every=null", "train.checkpoint_every=null"]
LONG_TIMEOUT = ["cluster.timeout=3600"]  # seconds; a paused contestant must not take its processes for dead


@dataclass(frozen=True)
class PlannedContestant:
    """A contestant that can be started.

    Attributes:
        definition: its definition in the options.
        config: the resolved config of the run of Lockstep, or of the run that its script reproduces.
        command: the command that starts it.
        useful_flops: the mean number of floating-point operations for a training example, not counting operations on
            padding; None if the model is not a BERT.
        tokens: the mean tokens of a training example, without padding; None if the model is not a BERT.
        gradient_bytes: the size of all gradients in float32.
    """

    definition: ContestantDefinition
    config: Config
    command: ContestantCommand
    useful_flops: float | None
    tokens: float | None
    gradient_bytes: int

    @property
    def is_training(self) -> bool:
        """Check whether the contestant trains. The other contestants measure the machine."""
        return self.definition.script not in (MATRICES, LINK_SCRIPT)


def plan_contestants(options: BenchOptions, overrides: Sequence[str], output: Path) -> list[PlannedContestant]:
    """Plan the contestants and, if the reference is a BERT, for each precision a script that multiplies its matrices.

    Args:
        options: The options of the benchmark.
        overrides: Overrides of the training config of every contestant.
        output: The directory for the files of the benchmark.

    Raises:
        UserError: the config of a contestant is impossible, or its script cannot train it.
    """
    definitions = {name: options.definitions[name] for name in options.contestants}
    configs = {
        name: compose_config(
            definition.framework, normalize_arguments([*ENDLESS, *overrides, *definition.overrides]), {}
        )
        for name, definition in definitions.items()
    }
    for name, definition in definitions.items():
        if configs[name].python is not None:
            raise UserError("python: the benchmark measures this environment; start common.bench with that interpreter")
        _check_script(name, definition, configs[name])
        if configs[name].data.stream_block is not None:
            raise UserError(
                "data.stream: a benchmark does not read streams; set data.stream=null data.stream_examples=null"
            )
    with reserve_ports(2 * len(definitions)) as reserved:  # for scripts and matrices
        ports = iter(reserved)
    planned: dict[str, PlannedContestant] = {}
    for name, definition in definitions.items():
        config, inputs = prepare_inputs(configs[name], None)
        if definition.script is None:
            command = _build_training_command(name, definition, config, overrides, output)
        else:
            arguments = _build_script_arguments(name, definition, config, inputs, output)
            command = _build_script_command(output / name, definition, config, arguments, next(ports))
        flops, tokens = _measure_flops_and_tokens(config, inputs)
        gradient_bytes = 4 * count_parameters(config.model, inputs.initial.hf_config)
        planned[name] = PlannedContestant(definition, config, command, flops, tokens, gradient_bytes)
        if name == options.reference:
            reference_hf_config = inputs.initial.hf_config
    reference = planned[options.reference]
    matrices = []
    if reference.tokens is not None:
        training = [contestant for contestant in planned.values() if contestant.is_training]
        for precision in dict.fromkeys(contestant.config.train.resolved_matmul_precision for contestant in training):
            matrices.append(_plan_matrices(reference, reference_hf_config, precision, output, next(ports)))
    return [*planned.values(), *matrices]


def _check_script(name: str, definition: ContestantDefinition, config: Config) -> None:
    """Raise UserError if a script does not exist or cannot train this config."""
    if definition.script in (None, LINK_SCRIPT):
        return
    module = definition.script_module
    if importlib.util.find_spec(module) is None:
        key = f"bench.definitions.{name}.script={definition.script}"
        raise UserError(f"{key}: no module {module}; name a file of {module.rpartition('.')[0].replace('.', '/')}")
    if definition.script in CUSTOM:
        check_custom(name, definition.framework, config)
    elif not isinstance(config.data, BuiltinNliSettings) and not _is_jsonl(config.data):
        columns = ", ".join(COLUMNS)
        raise UserError(
            f"{name}: can only read data=builtin_nli or one .jsonl file with the columns {columns}; remove it from "
            "bench.contestants"
        )
    if config.train.matmul_precision is not None:
        raise UserError(f"{name}: does not support train.matmul_precision; remove it from bench.contestants")
    if config.train.precision not in SCRIPT_PRECISIONS:
        raise UserError(
            f"{name}: does not support train.precision={config.train.precision}; remove it from bench.contestants"
        )


def _is_jsonl(data: DataSettings) -> bool:
    """Check whether the examples are one file that the scripts can read."""
    if not isinstance(data, FilesSettings) or (data.premise, data.hypothesis, data.label) != COLUMNS:
        return False
    return data.train.endswith(".jsonl") and Path(data.train).is_file()


def _build_training_command(
    name: str, definition: ContestantDefinition, config: Config, overrides: Sequence[str], output: Path
) -> ContestantCommand:
    """Return the command of a run of Lockstep."""
    run_dir = output / name
    profile = f"train.profile={definition.framework in config.strategy.profiles}"
    arguments = [*ENDLESS, *LONG_TIMEOUT, profile, *overrides, *definition.overrides, f"run_dir={run_dir}"]
    command = module_command(f"{definition.framework}_impl.train", *arguments)
    return ContestantCommand(name, command, run_dir, cores=definition.cores)


def _build_script_command(
    directory: Path, definition: ContestantDefinition, config: Config, arguments: Mapping[str, object], port: int
) -> ContestantCommand:
    """Return the command of a script, given its arguments. The directory has the name of the contestant.

    torchrun starts a process for each replica of a PyTorch script. A TensorFlow script is one process.
    """
    script = module_command(definition.script_module, *(f"--{key}={value}" for key, value in arguments.items()))
    replicas = config.strategy.world_size
    environment = {"CUDA_VISIBLE_DEVICES": ""} if config.train.device == "cpu" else {}
    if definition.framework == "tf":
        environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
        return ContestantCommand(directory.name, script, directory, environment, definition.cores)
    torchrun = [f"--nproc-per-node={replicas}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    command = module_command("torch.distributed.run", *torchrun, *script[1:])  # the first word is the interpreter
    environment["OMP_NUM_THREADS"] = str(max(1, count_cores() // replicas))
    environment["GLOO_SOCKET_IFNAME"] = find_loopback_interface()
    return ContestantCommand(directory.name, command, directory, environment, definition.cores)


def _build_script_arguments(
    name: str, definition: ContestantDefinition, config: Config, inputs: PreparedInputs, output: Path
) -> dict[str, object]:
    """Return the arguments that make a script train the same as Lockstep."""
    if definition.script == LINK_SCRIPT:
        return {"output": output / name}
    arguments: dict[str, object] = {
        "output": output / name,
        "replicas": config.strategy.world_size,
        "global-batch-size": config.train.global_batch_size,
        "learning-rate": config.optimizer.learning_rate,
        "precision": config.train.precision,
        "seed": config.train.seed,
    }
    if isinstance(config.model, CustomModelSettings):
        return arguments | build_custom_arguments(name, definition.framework, config, inputs, output)
    return arguments | {
        "weights": inputs.initial.directory.resolve(),
        "data": _write_examples(config.data, output),
        "max-length": config.train.max_length,
    }


def _write_examples(data: DataSettings, output: Path) -> Path:
    """Return the JSONL file of the training examples. Write one for the built-in corpus."""
    if isinstance(data, FilesSettings):
        return Path(data.train).resolve()
    assert isinstance(data, BuiltinNliSettings)
    path = output / "train.jsonl"
    if not path.exists():
        examples, _ = builtin_nli.generate(data.seed, data.train_examples, data.validation_examples)
        path.write_text("".join(json.dumps(dict(zip(COLUMNS, example, strict=True))) + "\n" for example in examples))
    return path.resolve()


def _measure_flops_and_tokens(config: Config, inputs: PreparedInputs) -> tuple[float | None, float | None]:
    """Return the mean operations and tokens of a training example, without padding; None if the model is not a BERT."""
    if not isinstance(inputs.cache, TokenCache) or not isinstance(config.model, BertSettings):
        return None, None
    split = inputs.cache.train
    lengths = split.lengths(np.arange(len(split)))
    return float(count_useful_flops(inputs.initial.hf_config, lengths).mean()), float(lengths.mean())


def _plan_matrices(
    reference: PlannedContestant, hf_config: Mapping[str, object], precision: str, output: Path, port: int
) -> PlannedContestant:
    """Plan the script that multiplies the matrices of a replica's step, in a process for each replica of the reference.

    hf_config: The content of the reference's config.json.
    """
    assert reference.tokens is not None
    name = f"{MATRICES}_{precision}"
    train = replace(reference.config.train, precision=precision, matmul_precision=None)
    config = replace(reference.config, train=train)
    arguments = {
        "output": output / name,
        "tokens": round(reference.tokens * train.global_batch_size / config.strategy.world_size),
        "hidden": hf_config["hidden_size"],
        "intermediate": hf_config["intermediate_size"],
        "precision": precision,
    }
    definition = ContestantDefinition("torch", MATRICES)
    command = _build_script_command(output / name, definition, config, arguments, port)
    return PlannedContestant(definition, config, command, None, None, 0)
