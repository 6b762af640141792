"""Checks of the BatchNorm layers of a user's model."""

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.data.batches import MICRO_BATCHES
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


def check_batch_sizes(config: Config, hf_config: HfConfig, count: int) -> None:
    """Raise UserError if a BatchNorm layer would get a batch of one value of each channel, which has no variance.

    PyTorch refuses such a batch when it comes, often the last one of an epoch. A synchronized layer and TensorFlow's
    would compute a moving variance of NaN.

    Args:
        config: The complete config of the run.
        hf_config: The config.json of the initial checkpoint.
        count: The number of training examples.
    """
    if not hf_config["norms_of_single_values"]:
        return
    side, (path, *_) = next(iter(hf_config["norms_of_single_values"].items()))
    size, strategy = config.train.global_batch_size, config.strategy
    sizes = {min(size, count)}
    if -(-count // size) <= config.train.steps and count % size:
        sizes.add(count % size)
    shards = strategy.world_size
    if isinstance(strategy, ParameterServerSettings) and strategy.batch == "global" and not strategy.synchronous:
        shards = 1  # each update is computed from a whole global batch
    parts = config.micro_batches * (MICRO_BATCHES if config.train.padding == "micro_batches" else 1)
    micro_batch_count = 1 if hf_config["sync_batch_norm"] else shards * parts
    if any(batch // micro_batch_count <= 1 for batch in sizes):
        raise UserError(
            f"model.{side}: BatchNorm layer {path} would get one example, whose single value of each channel has no "
            "variance; choose train.global_batch_size, train.micro_batches and strategy.replicas so that every "
            f"micro-batch of the {count} training examples has two or more"
        )
