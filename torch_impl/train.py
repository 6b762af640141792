"""Train with PyTorch; for example python -m torch_impl.train strategy=ddp."""

import os

import hydra
from omegaconf import DictConfig

from common.cluster.discovery import discover_cluster
from common.config.command_line import run_command, run_job
from common.config.compose import CONF, parse_config
from common.config.strategies import list_strategies


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@run_job(list_strategies("torch"))
def main(composed: DictConfig) -> None:
    """Train as the config says."""
    config, cluster = discover_cluster(parse_config(composed), "torch", os.environ)
    # A run needs these imports; --help and errors in the config do not.
    from common.cluster.training_command import run_training
    from torch_impl.launch import join, launch

    run_training(config, cluster, "torch", launch, join)


if __name__ == "__main__":
    with run_command(list_strategies("torch")):
        main()
