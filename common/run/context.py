"""The context of a run: the values that every part of a process of the run shares."""

from dataclasses import dataclass
from pathlib import Path

from common.config.compose import load_config
from common.config.saved_config import CONFIG
from common.config.schema import Config
from common.run.inputs import PreparedInputs, open_inputs


@dataclass(frozen=True)
class RunContext:
    """The values that every part of a process of a run shares.

    Attributes:
        config: the resolved config; its `run_dir` is the run directory of this host.
        framework: "torch" or "tf".
        inputs: the data, the initial weights and the checkpoint that the run starts from.
        is_chief: whether this process is the chief, rank 0, which writes into the run directory.
    """

    config: Config
    framework: str
    inputs: PreparedInputs
    is_chief: bool = True

    @property
    def run_dir(self) -> Path:
        """Return the run directory. Only a process that another program, such as torchrun, started may have none."""
        assert self.config.run_dir is not None
        return Path(self.config.run_dir)


def open_context(run_dir: Path, framework: str, is_chief: bool) -> RunContext:
    """Return the context of a process that a command has started, after the command prepared the run directory."""
    config = load_config(run_dir / CONFIG)
    return RunContext(config, framework, open_inputs(config, run_dir), is_chief)
