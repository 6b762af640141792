"""Preparation of a run on one host: its data, initial weights and checkpoint are built or found, and verified once.

The command, which the user starts, does this before it starts the training processes. host_index is the index of this
host among the hosts of the run; the first host, 0, has the chief and decides which checkpoint all hosts start from.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from common.config import compose
from common.config.layout_optimizers import LayoutSettings
from common.config.models import CustomModelSettings, TrainedTokenizerSettings
from common.config.parameter_groups import expand_groups, find_overlaps
from common.config.saved_config import CONFIG
from common.config.schema import Config
from common.data.arrays.stream_split import StreamSplit
from common.data.cache import open_transformed_cache, reopen_transformed_cache
from common.errors import UserError, report_write_errors
from common.interpreter import check_interpreter
from common.metrics.compute import check_predictions
from common.models.batch_norm_checks import check_batch_sizes
from common.models.initial_weights import open_initial_checkpoint
from common.models.keras_layouts import list_keras_layouts
from common.models.label_checks import check_classes, check_labels
from common.models.pretrained import find_source, open_source
from common.models.spec import count_parameters, get_trained_shapes, load_spec
from common.models.user_environment import check_in_environment
from common.records.summary import read_final_summary
from common.run.checkpoint import Checkpoint
from common.run.context import RunContext
from common.run.curve_settings import check_native_slots, check_resume
from common.run.data_settings import complete_config
from common.run.directory import find_chief_run_dir, open_run_dir
from common.run.inputs import PreparedInputs, save_inputs
from common.run.packed_inputs import find_packed_inputs
from common.run.resume import adopt_checkpoint, find_checkpoint
from common.run.summary import count_restarts

log = logging.getLogger("lockstep")


@contextmanager
def open_run(config: Config, framework: str, host_index: int = 0) -> Iterator[RunContext]:
    """Create and lock the directory of a run, and prepare the inputs of the run. Raise UserError."""
    with open_run_dir(config, framework, host_index) as run_dir:
        context = prepare_run(config, framework, run_dir, host_index)
        with _open_stream(context):
            yield context


@contextmanager
def _open_stream(context: RunContext) -> Iterator[None]:
    """Keep the blocks of `data.stream` while the processes of the run read them, and remove them then."""
    cache, checkpoint = context.inputs.cache, context.inputs.checkpoint
    if not isinstance(cache.train, StreamSplit):
        yield
        return
    stream = reopen_transformed_cache(context.config, cache.directory).train  # the config has the run directory now
    assert isinstance(stream, StreamSplit)
    with stream.open_blocks(checkpoint.stream_blocks if checkpoint and not context.config.data.allow_change else {}):
        yield


def prepare_run(config: Config, framework: str, run_dir: Path, host_index: int = 0) -> RunContext:
    """Prepare the inputs, and write config.yaml and prepared.json for the processes of the run. Raise UserError.

    Another host than the first need not have the checkpoint: common.cluster.checkpoint_transfer brings it later.
    """
    is_first_host = host_index == 0
    try:
        checkpoint = find_checkpoint(config, find_chief_run_dir(run_dir, host_index))
    except UserError:
        if is_first_host:
            raise
        checkpoint = None
    if checkpoint is not None:
        check_native_slots(config, framework, checkpoint)
    config, inputs = _build_inputs(config, checkpoint)
    if config.python is not None and isinstance(config.model, CustomModelSettings):
        check_in_environment(
            config, framework, inputs.cache, inputs.initial, check_interpreter("python", config.python, framework)
        )
    if inputs.checkpoint is not None:
        log.info("resuming from %s", inputs.checkpoint.directory)
        if is_first_host:
            inputs = replace(inputs, checkpoint=adopt_checkpoint(inputs.checkpoint, run_dir))
    elif count_restarts() > 0 and is_first_host:
        log.warning("%s: has no checkpoint; starting from the initial weights", run_dir)
    elif config.resume is not None and is_first_host:
        log.info("resume=%s: no checkpoint there; starting from the initial weights", config.resume)
    for overlap in find_overlaps(config.optimizer.groups, get_trained_shapes(config.model, inputs.initial.hf_config)):
        log.info("optimizer.groups: %s", overlap)
    config = replace(config, run_dir=str(run_dir))
    with report_write_errors(run_dir):
        compose.save_config(config, run_dir / CONFIG)
        save_inputs(inputs, run_dir)
    return RunContext(config, framework, inputs)


def prepare_inputs(config: Config, run_dir: Path | None) -> tuple[Config, PreparedInputs]:
    """Build what is missing and verify the inputs, without a run directory. Raise UserError.

    Args:
        config: the resolved config.
        run_dir: the directory of the chief of the run, which may have checkpoints; None if there is none yet.

    Returns:
        The config, completed with the values that depend on the data, and the inputs.
    """
    return _build_inputs(config, find_checkpoint(config, run_dir))


def _build_inputs(config: Config, checkpoint: Checkpoint | None) -> tuple[Config, PreparedInputs]:
    """Build or open the inputs and verify them.

    checkpoint: the checkpoint that the run resumes from; None to start from the initial weights.
    """
    cache, initial = find_packed_inputs(config)
    source = None  # the pretrained checkpoint of the config, which may bring a tokenizer
    if cache is None or initial is None:
        source = find_source(config)
        if checkpoint is not None and config.data.allow_change and isinstance(config.model, TrainedTokenizerSettings):
            source = open_source(checkpoint.directory, config)  # keeps the tokenizer, which new data would change
        cache = open_transformed_cache(config, source) if cache is None else cache
    check_labels(config, cache)
    check_predictions(config, cache)
    if initial is None:
        initial = open_initial_checkpoint(config, cache, source)
    check_classes(config, cache, initial.hf_config.get("output_classes"))
    config = complete_config(config, cache.train, count_parameters(config.model, initial.hf_config))
    if isinstance(config.model, CustomModelSettings):
        check_batch_sizes(config, initial.hf_config, len(cache.train))
    shapes = get_trained_shapes(config.model, initial.hf_config)
    if config.optimizer.groups:
        groups = expand_groups(config.optimizer.groups, shapes)
        config = replace(config, optimizer=replace(config.optimizer, groups=groups))
    if isinstance(config.optimizer, LayoutSettings):
        layouts: dict[str, str] = {}  # PyTorch's, whatever the config of an earlier run has
        if config.optimizer.semantics == "keras":
            layouts = list_keras_layouts(config.optimizer, load_spec(config.model), initial.hf_config, shapes)
        config = replace(config, optimizer=replace(config.optimizer, keras_layouts=layouts))
    if checkpoint is not None:
        check_resume(config, cache, checkpoint)
    return config, PreparedInputs(cache, initial, checkpoint)


def is_complete(context: RunContext) -> bool:
    """Check whether an earlier command has trained all steps of the run and written its summary."""
    config = context.config
    if context.inputs.start.plan_position < config.train.steps:
        return False
    try:
        summary = read_final_summary(context.run_dir)
    except UserError as error:
        log.warning("%s; writing it again", error)
        return False
    if summary is None or summary["status"] != "completed":
        return False
    log.info("%s: all %d steps are trained; to train longer raise train.steps", context.run_dir, config.train.steps)
    return True


def prepare_restart(context: RunContext) -> None:
    """Make the processes that the first host starts next resume from the newest checkpoint."""
    prepare_start(context, find_checkpoint(context.config, context.run_dir))


def prepare_start(context: RunContext, checkpoint: Checkpoint | None) -> None:
    """Make the processes that this host starts next begin from this checkpoint; None for the initial weights."""
    save_inputs(replace(context.inputs, checkpoint=checkpoint), context.run_dir)
