"""The life cycle of a training command: preview, launch or join a run, and report its end.

The commands of both sides, torch_impl.train and tf_impl.train, call it.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common.cluster.processes import exit_if_interrupted
from common.cluster.topology import ClusterMember, DiscoveredCluster, HostGroup, RayNodes
from common.config.command_line import PLAN
from common.config.models import find_library
from common.config.schema import Config
from common.errors import UserError
from common.interpreter import check_interpreter
from common.records.summary import SUMMARY_FILE
from common.run.context import RunContext
from common.run.prepare import is_complete, open_run, prepare_inputs
from common.run.preview import describe_plan
from common.run.progress import log_to, report_end


def run_training(
    config: Config,
    cluster: DiscoveredCluster,
    framework: str,
    launch: Callable[[RunContext, HostGroup], int],
    join: Callable[[Config, ClusterMember], int],
) -> None:
    """Prepare a run and launch its processes, or join a run that another program started.

    Args:
        config: the resolved config.
        cluster: the hosts that the command found, or the role of this process in a run that another program started.
        framework: "torch" or "tf".
        launch: starts the processes of this host and returns the exit code of the command.
        join: trains as one process of the cluster and returns the exit code of this process.
    """
    _check_python(config, cluster, framework)
    if config.data.stream_block is not None and isinstance(cluster, ClusterMember | RayNodes):
        raise UserError(
            "data.stream: a run whose processes another program starts does not read streams; set it to null"
        )
    if PLAN:  # the flag --plan
        log_to(None)
        print(describe_plan(config, framework))
        return
    if isinstance(cluster, ClusterMember):
        sys.exit(join(config, cluster))
    log_to(None)
    if isinstance(cluster, RayNodes):
        from common.cluster.ray_driver import run_on_ray

        exit_code = run_on_ray(config, cluster, framework)
    else:
        with open_run(config, framework, cluster.host_index) as context:
            if not cluster.is_multi_host and is_complete(context):
                report_end(context.run_dir, 0)
                return
            exit_code = launch(context, cluster)
    if exit_code:
        sys.exit(exit_if_interrupted(exit_code))


def _check_python(config: Config, cluster: DiscoveredCluster, framework: str) -> None:
    """Check the interpreter that `python` names. On Ray's nodes, the command of each node checks its own."""
    if config.python is None or isinstance(cluster, RayNodes):
        return
    if isinstance(cluster, ClusterMember):
        raise UserError(
            f"python={config.python}: another program has started this process already; start the command itself with "
            "that interpreter, and remove python"
        )
    check_interpreter("python", config.python, framework, find_library(config.model, framework))


def join_run(config: Config, framework: str, is_chief: bool, train: Callable[[RunContext], int]) -> int:
    """Train as one process of a run that another program started. Return the exit code of this process."""
    if is_chief:
        with open_run(config, framework) as context:
            (context.run_dir / SUMMARY_FILE).unlink(missing_ok=True)
            exit_code = train(context)
            report_end(context.run_dir, exit_code)
    else:
        run_dir = Path(config.run_dir).expanduser() if config.run_dir else None
        config, inputs = prepare_inputs(replace(config, run_dir=str(run_dir) if run_dir else None), run_dir)
        exit_code = train(RunContext(config, framework, inputs, is_chief=False))
    return exit_if_interrupted(exit_code)
