"""Train with TensorFlow; for example python -m tf_impl.train strategy=mirrored."""

import os

import hydra
from omegaconf import DictConfig

from common.cluster.discovery import discover_cluster
from common.config.command_line import run_command, run_job
from common.config.compose import CONF, parse_config
from common.config.strategies import list_strategies


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@run_job(list_strategies("tf"))
def main(composed: DictConfig) -> None:
    """Train as the config says."""
    config, cluster = discover_cluster(parse_config(composed), "tf", os.environ)
    # A run needs these imports; --help and errors in the config do not.
    from common.cluster.training_command import run_training
    from tf_impl.launch import join, launch

    run_training(config, cluster, "tf", launch, join)


if __name__ == "__main__":
    with run_command(list_strategies("tf")):
        main()
