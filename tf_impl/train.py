"""Train with TensorFlow: python -m tf_impl.train strategy=mirrored"""

import os
import sys

import hydra
from omegaconf import DictConfig

from common.cluster.discovery import discover_cluster
from common.cluster.topology import ClusterMember, DiscoveredCluster, RayNodes
from common.config.command_line import PLAN, run_command, run_job
from common.config.compose import CONF, parse_config
from common.config.schema import Config
from common.config.strategies import list_strategies


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@run_job(list_strategies("tf"))
def main(composed: DictConfig) -> None:
    run(*discover_cluster(parse_config(composed), "tf", os.environ))


def run(config: Config, found: DiscoveredCluster) -> None:
    """Prepare a run and start its processes, or be one of them. Its imports are not needed for `--help` and errors."""
    from common.cluster.processes import exit_if_interrupted
    from common.run.prepare import is_complete, open_run
    from common.run.preview import describe
    from common.run.progress import log_to, report_end
    from tf_impl.launch import join, launch

    if PLAN:
        log_to(None)
        print(describe(config, "tf"))
        return
    if isinstance(found, ClusterMember):
        sys.exit(join(config, found))
    log_to(None)
    if isinstance(found, RayNodes):
        from common.cluster.ray_driver import run_on_ray

        exit_code = run_on_ray(config, found, "tf")
    else:
        with open_run(config, "tf", found.host_index) as context:
            if not found.is_multi_host and is_complete(context):
                report_end(context.run_dir, 0)
                return
            exit_code = launch(context, found)
    if exit_code:
        sys.exit(exit_if_interrupted(exit_code))


if __name__ == "__main__":
    with run_command(list_strategies("tf")):
        main()
