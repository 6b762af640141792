"""Build the cache and the initial checkpoint ahead of time: python -m common.prepare data=... model=...

Training builds them too; what is there already is only opened and verified.
"""

import logging
import sys

import hydra
from omegaconf import DictConfig

from common.config.command_line import command, job
from common.config.compose import CONF, parse
from common.config.strategies import strategies_of
from common.config.validate import check
from common.run.prepare import prepare


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@job(strategies_of())
def main(composed: DictConfig) -> None:
    config = parse(composed)
    check(config)
    _, prepared = prepare(config, None)
    print(f"cache: {prepared.cache.directory} ({prepared.cache})")
    print(f"initial checkpoint: {prepared.initial.directory}")


if __name__ == "__main__":
    with command(strategies_of()):
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        main()
