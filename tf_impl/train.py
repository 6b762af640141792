"""Train with TensorFlow: python -m tf_impl.train strategy=mirrored"""

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
from tf_impl.launch import join, joins_group, launch


@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@one_line_errors(STRATEGIES["tf"])
def main(composed: DictConfig) -> None:
    config = parse(composed)
    member = joins_group(config)
    validate(config, "tf")
    if member:
        sys.exit(join(config))
    check_host(config, "tf")
    log_to(None)
    with new_run_dir(config, "tf"):
        make_ready(config)
        exit_code = launch(config)
    if exit_code:
        sys.exit(exit_code)


if __name__ == "__main__":
    with one_line_errors(STRATEGIES["tf"]):
        main()
