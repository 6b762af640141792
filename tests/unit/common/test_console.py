"""The command lockstep: its subcommands, and what it passes to them."""

import pytest
from click.testing import CliRunner

from common import console
from common.console import COMMANDS, main
from common.run_module import module_command
from tests.conftest import Python


@pytest.mark.parametrize(
    "arguments", [[], ["strategy=ddp", "--help"], ["-m", "train.seed=1,2"], ["--cfg", "job", "--", "-x"]]
)
def test_arguments_are_passed_as_they_are(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []
    monkeypatch.setattr(console.os, "execv", lambda path, command: executed.append(command))
    for name in COMMANDS:
        assert CliRunner().invoke(main, [name, *arguments]).exit_code == 0
    assert executed == [module_command(module, *arguments) for module, _ in COMMANDS.values()]


def test_subcommands_are_listed_in_order_with_a_line_each() -> None:
    listed = CliRunner().invoke(main, [])
    assert listed.exit_code == 0
    lines = listed.output.partition("Commands:\n")[2].splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[name, about] for name, (_, about) in COMMANDS.items()]


def test_a_mistyped_subcommand_is_an_error() -> None:
    result = CliRunner().invoke(main, ["trian"])
    assert result.exit_code == 2
    assert "No such command 'trian'" in result.output


def test_the_list_imports_nothing_heavy(python: Python) -> None:
    imported = python("import sys, common.console; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "click" in imported
    assert not {"hydra", "omegaconf", "numpy", "torch", "tensorflow"} & {*imported}
