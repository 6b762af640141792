"""What a command imports before it knows that it is to train, and what it imports to start a run's processes."""

import pytest

from tests.conftest import Python

# The data, the models, the run directory and what shows it.
OF_A_RUN = {"numpy", "tokenizers", "safetensors", "filelock", "common.data", "common.models", "common.run"}
# What a process of a run computes with, what its chief writes with, and what a person sees at its end.
OF_ITS_PROCESSES = {"torch", "transformers", "tensorflow", "keras", "datasets", "tensorboard", "rich"}
MAIN = """
import runpy, sys
sys.stderr = sys.stdout
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit:
    pass
print("imported:", *sys.modules)
"""
LAUNCHER = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
print("imported:", *sys.modules)
"""


def imported(output: str) -> set[str]:
    """The modules of the last line and the packages that they are in, to the second level."""
    names = output.rpartition("imported: ")[2].split()
    return {".".join(name.split(".")[:depth]) for name in names for depth in (1, 2)}


@pytest.mark.parametrize("side", ["torch_impl", "tf_impl"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--help"], "Choices, limits and units"),
        (["--cfg", "job"], "global_batch_size: 32"),
        (["train.stepps=1"], "did you mean train.steps?"),
        (["train.steps=many"], "error: train.steps: "),
        (["train.steps=-1"], "error: train.steps=-1: "),
        (["strategy=none"], "error: strategy=none: no such choice"),
        (["strategy.replicas=0"], "error: strategy.replicas=0: "),
        (["--nothing"], "error: --nothing: no such flag"),
    ],
)
def test_help_and_errors_in_the_config_do_not_import_what_a_run_needs(
    side: str, arguments: list[str], says: str, python: Python
) -> None:
    output = python(MAIN, f"{side}.train", *arguments)
    assert says in output
    assert not imported(output) & (OF_A_RUN | OF_ITS_PROCESSES)


@pytest.mark.parametrize("side", ["torch_impl", "tf_impl"])
def test_a_launcher_does_not_import_what_its_processes_need(side: str, python: Python) -> None:
    modules = imported(python(LAUNCHER, f"{side}.launch", "common.run.preview"))
    assert "common.run" in modules
    assert not modules & OF_ITS_PROCESSES
