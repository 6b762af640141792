"""The scripts that train a user's own model, in loops as the user would write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.data.batches import Split
from common.errors import UserError
from common.run.inputs import PreparedInputs

CUSTOM = ("custom_ddp", "custom_fit", "custom_tf")
# The loss that a script computes, by the task
CUSTOM_LOSSES = {"classification": "cross_entropy", "language_model": "cross_entropy", "regression": "mse"}


def check_custom(name: str, framework: str, config: Config) -> None:
    """Raise UserError if the script that trains a user's own model cannot train the model of this config."""
    model, task, data = config.model, config.task, config.data
    is_custom = isinstance(model, CustomModelSettings) and getattr(model, framework) is not None
    if not is_custom or task.kind not in CUSTOM_LOSSES:
        tasks = ", ".join(CUSTOM_LOSSES)
        raise UserError(
            f"{name}: can only train model=custom model.{framework}=... with task={tasks}; remove it from "
            "bench.contestants"
        )
    loss = CUSTOM_LOSSES[task.kind]
    weights = task.label_weights, getattr(data, "weight", None), getattr(task, "label_smoothing", None)
    if getattr(task, "loss", loss) != loss or any(weights) or getattr(data, "transforms", None):
        raise UserError(
            f"{name}: can only compute the loss {loss}, without weights, smoothing and transforms; remove it from "
            "bench.contestants"
        )


def build_custom_arguments(
    name: str, framework: str, config: Config, inputs: PreparedInputs, output: Path
) -> dict[str, object]:
    """Write the examples into a directory, and return the arguments of a script that only these scripts take."""
    assert isinstance(config.model, CustomModelSettings)
    return {
        "model": getattr(config.model, framework),
        "arguments": json.dumps(config.model.arguments),
        "loss": CUSTOM_LOSSES[config.task.kind],
        "data": _write_arrays(inputs.cache.train, output),
        "ragged": json.dumps(_list_ragged(name, config, inputs.cache.train)),
        "channels": json.dumps(list(inputs.initial.hf_config["channels"])),
    }


def _write_arrays(split: Split, output: Path) -> Path:
    """Write the inputs and the labels of all training examples, padded to the longest example. Return the file."""
    path = output / "train.npz"
    if not path.exists():
        ids = np.arange(len(split))
        arrays: dict[str, Any] = dict(split.gather(ids, ids))
        np.savez(path, **arrays)
    return path.resolve()


def _list_ragged(name: str, config: Config, split: Split) -> list[str]:
    """Return the inputs whose first axis differs between examples. Each of them has a mask.

    Raises:
        UserError: The labels differ in length, or some of them have no loss. The scripts know neither.
    """
    shapes = {key: shape for key, shape in split.example_shapes.items() if None in shape}
    if "labels" in shapes:
        raise UserError(f"{name}: needs labels of one shape; remove it from bench.contestants")
    ignore_label = getattr(config.task, "ignore_label", None)
    if ignore_label is not None and (split.labels == ignore_label).any():
        raise UserError(
            f"{name}: cannot leave out the labels task.ignore_label={ignore_label}; remove it from bench.contestants"
        )
    return [key for key in shapes if f"{key}_mask" in shapes]
