"""Modules that are run beside packages which have the names of Lockstep's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.hidden_packages import UNUSED_BY_KERAS
from common.run_module import ROOT, module_command

PROBE = """
import json, sys
import common.errors, torch_impl, tf_impl
print(json.dumps([__name__, sys.argv[1:], sys.path[0], common.errors.__file__]))
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a package that is also called `common`, and with a module."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    (tmp_path / "probe.py").write_text(PROBE)
    return tmp_path


def run(directory: Path, safe_path: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": safe_path}
    command = module_command("probe", "--help", "a=b")
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


def test_lockstep_is_found_and_then_the_modules_of_the_directory(directory: Path) -> None:
    done = run(directory)
    assert done.returncode == 0, done.stderr
    name, arguments, first, errors = json.loads(done.stdout)
    assert (name, arguments) == ("__main__", ["--help", "a=b"])
    assert (first, errors) == (str(directory), f"{ROOT}/common/errors.py")


def test_a_safe_path_stays_safe(directory: Path) -> None:
    """PYTHONSAFEPATH says that the current directory is not searched."""
    assert "No module named probe" in run(directory, safe_path="1").stderr


def test_keras_imports_no_packages_for_pictures_and_for_scikit_learn(directory: Path) -> None:
    """The user's code may import them later."""
    for package in UNUSED_BY_KERAS:
        (directory / f"{package}.py").touch()
    code = "try:\n    import sklearn\n    from matplotlib import pyplot\nexcept ImportError:\n    sklearn = None\n"
    (directory / "keras.py").write_text(code)
    (directory / "probe.py").write_text(
        "import keras\nprint(keras.sklearn)\nimport sklearn, matplotlib\nprint(sklearn)"
    )
    done = run(directory)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["None", f"<module 'sklearn' from '{directory}/sklearn.py'>"]


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise OSError('libcudart.so: cannot open')", "OSError: libcudart.so: cannot open"),
        ("import missing_package", "ModuleNotFoundError: No module named 'missing_package'"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_in_one_line(directory: Path, code: str, cause: str) -> None:
    (directory / "hydra.py").write_text(code)
    command = module_command("torch_impl.train", "--help")
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {sys.executable}: cannot import hydra ({cause}")
    assert done.stderr.endswith("; repair that environment\n")


def test_an_error_of_a_package_after_its_import_keeps_its_traceback(directory: Path) -> None:
    (directory / "probe.py").write_text("def fail():\n    raise ImportError('late')\n\nfail()\n")
    assert "Traceback" in run(directory).stderr
