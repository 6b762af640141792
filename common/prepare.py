"""Build the cache and the initial checkpoint ahead of time: python -m common.prepare data=... model=...

Training calls `prepare` too: what is there already is only opened.
"""

import logging
import sys
from typing import Any

import hydra
from omegaconf import DictConfig

from common.config.schema import CONF, IMAGES, STRATEGIES, Config, parse
from common.config.validate import check
from common.data.images.image_cache import open_image_cache
from common.data.plan import steps_for, steps_per_epoch
from common.data.text.token_cache import Cache, open_token_cache
from common.errors import one_line_errors
from common.models.initial_weights import InitialCheckpoint, open_initial_checkpoint
from common.models.pretrained import SourceCheckpoint, find_source


def prepare(config: Config, source: SourceCheckpoint | None = None) -> tuple[Cache, InitialCheckpoint]:
    """The cache and the initial checkpoint of a config, built first where they are missing. Raises UserError.

    source: whose tokenizer to keep, where not that of `model.checkpoint`.
    """
    source = source or find_source(config)
    cache = open_image_cache(config) if config.data.name in IMAGES else open_token_cache(config, source)
    return cache, open_initial_checkpoint(config, cache, source)


def resolve(config: Config, cache: Cache) -> None:
    """Write out what the corpus decides: `train.steps` where epochs are given, and `schedule.total_steps`."""
    train, count = config.train, len(cache.train)
    if train.epochs is not None:
        if train.virtual_epoch_examples is None:
            train.steps = train.epochs * steps_per_epoch(count, train.global_batch_size)
        else:
            train.steps = steps_for(count, train.global_batch_size, train.epochs * train.virtual_epoch_examples)
        train.epochs = None
    config.schedule.total_steps = config.schedule.total_steps or config.train.steps


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@one_line_errors(sorted({*STRATEGIES["torch"], *STRATEGIES["tf"]}))
def main(composed: DictConfig) -> Any:
    config = parse(composed)
    check(config)
    cache, initial = prepare(config)
    print(f"cache: {cache.directory} ({cache})")
    print(f"initial checkpoint: {initial.directory}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    with one_line_errors(sorted({*STRATEGIES["torch"], *STRATEGIES["tf"]})):
        main()
