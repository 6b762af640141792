"""Train with PyTorch: python -m torch_impl.train strategy=ddp"""

import sys

import hydra
from omegaconf import DictConfig

from common.cluster.agreement import check_host
from common.config.schema import CONF, STRATEGIES, parse
from common.config.validate import validate
from common.errors import one_line_errors
from common.run.directory import new_run_dir
from common.run.progress import log_to
from common.run.resume import make_ready
from torch_impl.launch import join, joins_group, launch


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@one_line_errors(STRATEGIES["torch"])
def main(composed: DictConfig) -> None:
    config = parse(composed)
    member = joins_group(config)
    validate(config, "torch")
    if member:
        sys.exit(join(config))
    check_host(config, "torch")
    log_to(None)
    with new_run_dir(config, "torch"):
        make_ready(config)
        exit_code = launch(config)
    if exit_code:
        sys.exit(exit_code)


if __name__ == "__main__":
    with one_line_errors(STRATEGIES["torch"]):
        main()
