"""Check that a run can train on a stream, `data.stream`."""

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.config.task_kinds import MultiOutputSettings
from common.errors import UserError


def check_stream(config: Config, hosts: int = 1) -> None:
    """Raise UserError if a run cannot train on a stream: its replicas must need the same blocks at the same time."""
    block_size = config.data.stream_block
    if block_size is None:
        return
    if block_size < config.train.global_batch_size:
        raise UserError(
            f"data.stream={block_size}: smaller than train.global_batch_size={config.train.global_batch_size}; raise it"
        )
    if isinstance(config.task, MultiOutputSettings):
        raise UserError("data.stream: task=multi_output does not read streams; set it to null")
    if isinstance(config.strategy, ParameterServerSettings):
        raise UserError("data.stream: strategy=parameter_server does not read streams; choose ddp or mirrored")
    if hosts > 1:
        raise UserError("data.stream: a run on several hosts does not read streams; set it to null, or use one host")
