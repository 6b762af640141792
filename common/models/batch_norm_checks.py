"""Checks of the BatchNorm layers of a user's model."""

import math

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.errors import UserError
from common.map.description import ModelDescription
from common.models.hf_config import HfConfig


def check_synchronization(settings: CustomModelSettings, side: str, description: ModelDescription) -> None:
    """Raise UserError if a layer synchronizes its statistics over replicas by itself, and the config does not."""
    synchronized = [
        layer for layer in description.layers if layer.kind == "SyncBatchNorm" or layer.attributes.get("synchronized")
    ]
    if synchronized and not settings.sync_batch_norm:
        raise UserError(
            f"model.{side}: layer {synchronized[0].path} uses the statistics of all replicas; set "
            "model.sync_batch_norm=true, or make it a BatchNorm of one replica"
        )


def list_norms_of_single_values(side: str, description: ModelDescription) -> list[str]:
    """Return the paths of the BatchNorm layers that receive one value of each channel from an example.

    Args:
        side: "torch" or "tf".
        description: The model of that side.
    """
    is_keras = side == "tf" or description.is_keras
    paths = []
    for layer in description.layers:
        statistics = [name for name in layer.variables.values() if name in description.statistics]
        is_frozen = is_keras and not any(description.variables[name].trainable for name in layer.variables.values())
        if not statistics or layer.connection is None or is_frozen:  # a frozen layer of Keras uses no batch statistics
            continue
        if math.prod(layer.connection.received_sizes) == math.prod(description.shapes[statistics[0]]):
            paths.append(layer.path)
    return paths


def check_batch_sizes(config: Config, hf_config: HfConfig, count: int) -> None:
    """Raise UserError if a BatchNorm layer would get a batch of one value of each channel, which has no variance.

    PyTorch refuses such a batch when it comes, often the last one of an epoch; Keras computes NaN.

    Args:
        config: The config of the run.
        hf_config: The config.json of the initial checkpoint.
        count: The number of training examples.
    """
    if not hf_config["norms_of_single_values"]:
        return
    side, (path, *_) = next(iter(hf_config["norms_of_single_values"].items()))
    size = config.train.global_batch_size
    sizes = {min(size, count)}
    if -(-count // size) <= config.train.steps and count % size:
        sizes.add(count % size)
    shard_count = 1 if hf_config["sync_batch_norm"] else config.strategy.world_size * config.micro_batches
    if any(batch // shard_count <= 1 for batch in sizes):
        raise UserError(
            f"model.{side}: BatchNorm layer {path} would get one example, whose single value of each channel has no "
            f"variance; choose train.global_batch_size so that every shard of the {count} training examples has two or "
            "more"
        )
