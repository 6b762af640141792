"""Modules that are run beside packages which have the names of Lockstep's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.hidden_packages import UNUSED_BY_KERAS
from common.run_module import PACKAGES, ROOT, module_command

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


def train(directory: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    command, environment = module_command("torch_impl.train", "--help"), {**os.environ, **variables}
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
        ("", "ImportError: cannot import name 'compose' from 'hydra'"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_in_one_line(directory: Path, code: str, cause: str) -> None:
    packages = directory / "site-packages"
    packages.mkdir()
    (packages / "hydra.py").write_text(code)
    done = train(directory, PYTHONPATH=str(packages))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {sys.executable}: cannot import hydra ({cause}")
    assert done.stderr.endswith("; repair that environment\n")


def test_packages_beside_lockstep_are_not_its_own(tmp_path: Path) -> None:
    """They are if Lockstep is installed."""
    packages = tmp_path / "site-packages"
    for name in PACKAGES:
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    for name in ("run_module", "hidden_packages", "errors"):
        shutil.copy(Path(ROOT, "common", f"{name}.py"), packages / "common")
    (packages / "common" / "probe.py").write_text("import some_package")
    (packages / "some_package.py").write_text("raise OSError('no library')")
    command = [sys.executable, str(packages / "common" / "run_module.py"), "common.probe"]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "cannot import some_package (OSError: no library); repair" in done.stderr


def test_a_file_of_the_user_that_hides_a_package_is_named(directory: Path) -> None:
    (directory / "hydra.py").write_text("\nraise OSError('no data')\n")
    done = train(directory)
    expected = f"error: {sys.executable}: cannot import hydra (OSError: no data (hydra.py, line 2)); "
    assert done.stderr == f"{expected}correct or rename your file\n"


def test_an_error_of_code_that_belongs_to_no_module_keeps_its_traceback(directory: Path) -> None:
    (directory / "probe.py").write_text("exec('raise ValueError(\"of the user\")', {})\n")
    assert run(directory).stderr.endswith("\nValueError: of the user\n")


def test_an_error_of_a_package_after_its_import_keeps_its_traceback(directory: Path) -> None:
    (directory / "probe.py").write_text("def fail():\n    raise ImportError('late')\n\nfail()\n")
    assert "Traceback" in run(directory).stderr
