"""Functions that complete a config and build the inputs of its run, as the command does."""

from common.config.resolve import resolve_config
from common.config.schema import Config
from common.config.validate import check_config
from common.run.context import RunContext
from common.run.prepare import prepare_inputs
from torch_impl.communication.rendezvous import Group

ALONE = Group(0, 1, None, None)


def make_ready(config: Config) -> RunContext:
    """Check a config, fill in its replicas and steps, and build what is missing."""
    check_config(config, "torch")
    config, inputs = prepare_inputs(resolve_config(config), None)
    return RunContext(config, "torch", inputs)


def context_of(config: Config) -> RunContext:
    """Build the inputs of a complete config. Return the context of its run."""
    return RunContext(config, "torch", prepare_inputs(config, None)[1])
