"""Train with PyTorch: python -m torch_impl.train strategy=ddp"""

import os
import sys

import hydra
from omegaconf import DictConfig

from common.cluster.discover import discover
from common.cluster.topology import Found, Member, Remote
from common.config.command_line import PLAN, run_command, run_job
from common.config.compose import CONF, parse_config
from common.config.schema import Config
from common.config.strategies import list_strategies


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@run_job(list_strategies("torch"))
def main(composed: DictConfig) -> None:
    run(*discover(parse_config(composed), "torch", os.environ))


def run(config: Config, found: Found) -> None:
    """Prepare a run and start its processes, or be one of them. Its imports are not needed for `--help` and errors."""
    from common.cluster.processes import leave
    from common.run.directory import open_run_dir
    from common.run.prepare import is_complete, prepare_run
    from common.run.preview import describe
    from common.run.progress import log_to, report_end
    from torch_impl.launch import join, launch

    if PLAN:
        log_to(None)
        print(describe(config, "torch"))
        return
    if isinstance(found, Member):
        sys.exit(join(config, found))
    log_to(None)
    if isinstance(found, Remote):
        from common.cluster.ray_driver import drive

        exit_code = drive(config, found, "torch")
    else:
        with open_run_dir(config, "torch", found.node) as run_dir:
            config, prepared = prepare_run(config, run_dir, found.node)
            if not found.several and is_complete(config, prepared, run_dir):
                report_end(run_dir, 0)
                return
            exit_code = launch(config, run_dir, found)
    if exit_code:
        sys.exit(leave(exit_code))


if __name__ == "__main__":
    with run_command(list_strategies("torch")):
        main()
