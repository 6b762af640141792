"""The command `lockstep`: a short form of `python -m torch_impl.train`, `python -m common.compare`, and so on.

`lockstep COMMAND ARGUMENT...` becomes the process of that command, which gets the arguments as they are.
"""

import os
import sys
from typing import NoReturn

import click
from typing_extensions import override

from common.run_module import module_command

COMMANDS = {  # module and description by subcommand
    "torch": ("torch_impl.train", "Train in PyTorch."),
    "tf": ("tf_impl.train", "Train in TensorFlow."),
    "compare": ("common.compare", "Check whether training runs agree, and show how."),
    "diagnose": ("common.diagnose", "Find out why two training runs differ."),
    "map": ("common.map", "Prove that two models compute the same."),
    "bench": ("common.bench", "Measure the speed of training."),
    "prepare": ("common.prepare", "Build the cache ahead of time."),
    "export": ("common.export", "Save a run's weights, or a run as one file."),
}


class ModuleCommand(click.Command):
    """A subcommand that runs a module and leaves all arguments to it, `--help` too."""

    def __init__(self, name: str, module: str, description: str) -> None:
        super().__init__(name, help=description, add_help_option=False)
        self.module = module

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    @override
    def invoke(self, ctx: click.Context) -> NoReturn:
        command = module_command(self.module, *ctx.args)
        sys.stdout.flush()
        os.execv(command[0], command)


class Commands(click.Group):
    """The subcommands, listed in the order of their definition."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=Commands, invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Train one experiment in PyTorch and TensorFlow, data-parallel, and compare the training runs."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _name, (_module, _description) in COMMANDS.items():
    main.add_command(ModuleCommand(_name, _module, _description))
