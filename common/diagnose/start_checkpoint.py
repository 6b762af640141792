"""Copies of the start checkpoint of a diagnosis, one for each side, A and B.

A run resumes only from a checkpoint that has the run's own config, so that each side needs a copy.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.cluster.discovery import compose_config
from common.config.schema import AVERAGE
from common.diagnose.arguments import SideArguments
from common.diagnose.overrides import quote_value
from common.run.checkpoint import open_unverified_checkpoint
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext
from common.run.prepare import prepare_inputs
from common.training.state import State


def copy_start_checkpoint(side: SideArguments, output: Path) -> list[str]:
    """Copy a side's start checkpoint to OUTPUT, and return the overrides that make a run resume from the copy.

    A side without a start checkpoint keeps its overrides.
    """
    overrides = side.train_overrides
    if side.start is None:
        return overrides
    directory = (output / f"{side.name}-start").absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    config, inputs = prepare_inputs(compose_config(side.framework, overrides, os.environ), run_dir=None)
    checkpoint = open_unverified_checkpoint(side.start)
    state = checkpoint.load()
    dtype = np.float64 if config.train.precision == "float64" else np.float32
    weights, slots = (
        {name: array.astype(dtype) for name, array in arrays.items()} for arrays in (state.weights, state.slots)
    )
    if AVERAGE in config.slots:  # an average that the checkpoint lacks starts here
        slots = {f"{AVERAGE}.{name}": array for name, array in weights.items()} | slots
    writer = CheckpointWriter(RunContext(replace(config, run_dir=str(directory)), side.framework, inputs))
    writer.save(State(weights, slots), checkpoint.position)
    writer.finish()
    writer.close()
    return [*overrides, f"resume={quote_value(str(directory))}"]
