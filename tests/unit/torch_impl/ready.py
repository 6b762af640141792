"""A config as the command completes it, and what its run starts from."""

from common.config.resolve import resolve_config
from common.config.schema import Config
from common.config.validate import check_config
from common.run.prepare import Prepared, prepare
from torch_impl.communication.rendezvous import Group

ALONE = Group(0, 1, None, None)


def make_ready(config: Config) -> tuple[Config, Prepared]:
    """Check a config, fill in its replicas and steps, and build what is missing."""
    check_config(config, "torch")
    return prepare(resolve_config(config), None)
