"""Tests of the imports of a command and of a launcher. Imports take most of the start-up time."""

import json

import pytest

from tests.conftest import Python

pytestmark = pytest.mark.slow

# The packages of the data, the models and the run directory.
RUN_PACKAGES = {"numpy", "tokenizers", "safetensors", "filelock", "common.data", "common.models", "common.run"}
# The packages for computation in a process of a run, for the files of its chief, and for the terminal.
PROCESS_PACKAGES = {"torch", "transformers", "tensorflow", "keras", "datasets", "tensorboard", "rich"}
MISTAKES = {  # arguments of a command, and what it prints
    "--help": "Choices, limits and units",
    "--cfg job": "global_batch_size: 32",
    "train.stepps=1": "did you mean train.steps?",
    "train.steps=many": "error: train.steps: ",
    "train.steps=-1": "error: train.steps=-1: ",
    "strategy=none": "error: strategy=none: no such choice",
    "strategy.replicas=0": "error: strategy.replicas=0: ",
    "--nothing": "error: --nothing: no such flag",
}
MAIN = """
import json, runpy, sys
sys.stderr = sys.stdout
module, calls = sys.argv[1:]
for sys.argv[1:] in json.loads(calls):
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
print("imported:", *sys.modules, flush=True)  # at once: errors may still be in the buffer of another file
"""
LAUNCHER = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
print("imported:", *sys.modules)
"""


def read_imported_modules(output: str) -> set[str]:
    """Return the packages of the modules in the last line, to the second level."""
    names = output.rpartition("imported: ")[2].split()
    return {".".join(name.split(".")[:depth]) for name in names for depth in (1, 2)}


@pytest.mark.parametrize("side", ["torch_impl", "tf_impl"])
def test_help_and_config_errors_do_not_import_the_packages_of_a_run(side: str, python: Python) -> None:
    output = python(MAIN, f"{side}.train", json.dumps([arguments.split() for arguments in MISTAKES]))
    assert not [arguments for arguments, message in MISTAKES.items() if message not in output]
    assert not read_imported_modules(output) & (RUN_PACKAGES | PROCESS_PACKAGES)


@pytest.mark.parametrize("side", ["torch_impl", "tf_impl"])
def test_a_launcher_does_not_import_the_packages_of_its_processes(side: str, python: Python) -> None:
    modules = read_imported_modules(python(LAUNCHER, f"{side}.launch", "common.run.preview"))
    assert "common.run" in modules
    assert not modules & PROCESS_PACKAGES


TENSORFLOW = """
import sys
from tf_impl.launch import _import_tensorflow
_import_tensorflow()
print("imported:", *sys.modules)
import matplotlib, sklearn
"""


def test_tensorflow_starts_without_packages_that_only_keras_imports(python: Python) -> None:
    """A model may still import them."""
    modules = read_imported_modules(python(TENSORFLOW))
    assert {"tensorflow", "keras"} <= modules
    assert not modules & {"matplotlib", "sklearn"}
