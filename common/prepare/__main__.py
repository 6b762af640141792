"""Build the cache and the initial checkpoint ahead of time: python -m common.prepare data=... model=...

The cache holds the examples in tokenized or decoded form. The initial checkpoint holds the weights before the first
step. A run builds both if they are missing; what exists is only opened and verified.
"""

import logging
import sys

import hydra
from omegaconf import DictConfig

from common.config.command_line import run_command, run_job
from common.config.compose import CONF, parse_config
from common.config.strategies import list_strategies
from common.config.validate import check_config
from common.run.prepare import prepare_inputs


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@run_job(list_strategies())
def main(composed: DictConfig) -> None:
    """Run the command on a config that Hydra composed."""
    config = parse_config(composed)
    check_config(config)
    _, prepared = prepare_inputs(config, None)
    print(f"cache: {prepared.cache.directory} ({prepared.cache})")
    print(f"initial checkpoint: {prepared.initial.directory}")


if __name__ == "__main__":
    with run_command(list_strategies()):
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        main()
