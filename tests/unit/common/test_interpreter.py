"""The checks of an interpreter of another environment."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from common import interpreter
from common.errors import UserError
from common.interpreter import (
    FRAMEWORKS,
    LIBRARIES,
    MODULES,
    PYTHON,
    SHARED_PACKAGES,
    check_import,
    check_interpreter,
    find_different_files,
)
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interpreter.CHECKED_INTERPRETERS, "{}")


class FakeEnvironment:
    """A program that is this Python with other packages before its own."""

    def __init__(self, directory: Path, flags: str = "") -> None:
        self.packages = directory / "packages"
        self.packages.mkdir(parents=True)
        self.python = str(directory / "python")
        Path(self.python).write_text(f'#!/bin/sh\nPYTHONPATH={self.packages} exec {sys.executable} {flags} "$@"\n')
        Path(self.python).chmod(0o755)

    def add(self, package: str, version: str, code: str = "") -> None:
        """Add a package of this version whose module runs this code."""
        (self.packages / package).mkdir()
        (self.packages / package / "__init__.py").write_text(code)
        facts = self.packages / f"{package}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def test_the_versions_are_those_of_the_package() -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    required = {*FRAMEWORKS["torch"], *FRAMEWORKS["tf"], *LIBRARIES.values(), *SHARED_PACKAGES}
    assert required <= set(project["dependencies"])
    assert set(str(PYTHON.specifier).split(",")) == set(project["requires-python"].split(","))
    assert MODULES.keys() == FRAMEWORKS.keys()


def test_an_environment_with_all_packages_is_accepted_and_checked_once(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path)
    environment.add("torch", "2.99.1", "raise AssertionError('imported')")
    versions = check_interpreter("python", environment.python, "torch")
    assert versions["torch"] == "2.99.1"
    Path(environment.python).unlink()
    assert check_interpreter("python", environment.python, "torch") == versions
    assert json.loads(os.environ[interpreter.CHECKED_INTERPRETERS])


def test_a_path_that_is_no_interpreter_is_refused(tmp_path: Path) -> None:
    def make_program(script: str) -> Path:
        program = tmp_path / f"program-{len(list(tmp_path.iterdir()))}"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    (tmp_path / "text").write_text("")
    (tmp_path / "broken").write_text("#!/no/such/program\n")
    (tmp_path / "broken").chmod(0o755)
    cases = {
        str(tmp_path / "none"): "no such file; name the interpreter of an environment, such as venv/bin/python",
        str(tmp_path): f"is a directory; name its interpreter, such as {tmp_path}/bin/python",
        str(tmp_path / "text"): "is not executable; name the interpreter of an environment",
        str(tmp_path / "broken"): "cannot be started (No such file or directory); name the Python",
        "/bin/ls": "cannot run Lockstep (",
        "/bin/true": "is not a Python interpreter: it did not run a Python program; name the",
        str(make_program("echo hello")): "is not a Python interpreter: it did not run a Python program; name the",
        "~no-such-user/bin/python": "no such file; name the interpreter of an environment",
        "/usr/bin/yes": "cannot run Lockstep (",  # it refuses the arguments
        str(make_program("exec yes")): "cannot run Lockstep (prints more than 1 MiB); name the Python",
        str(make_program("yes >&2 & yes")): "cannot run Lockstep (prints more than 1 MiB); name the Python",
        str(make_program("sleep 600 & exit 3")): "cannot run Lockstep (exit code 3); name the Python",
    }
    for python, expected in cases.items():
        with pytest.raises(UserError) as raised:
            check_interpreter("a.python", python, "torch")
        assert str(raised.value).startswith(f"a.python={python}: {expected}")
        assert "\n" not in str(raised.value)


def test_missing_packages_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no torch \(needs <3,>=2.11\), no filelock .*; .*python -m pip install '"):
        check_interpreter("python", FakeEnvironment(tmp_path, "-S").python, "torch")


@pytest.mark.slow
def test_a_bert_of_tensorflow_needs_keras_hub(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path)
    for package, version in (("tensorflow", "2.20.0"), ("keras", "3.10.0")):
        environment.add(package, version)
    environment.add("keras_hub", "0.32.0", "raise ImportError('needs a newer Keras')")
    assert check_interpreter("python", environment.python, "tf")["keras-hub"] == "0.32.0"
    check_import("python", environment.python, "tf")
    with pytest.raises(UserError, match=r"cannot import keras_hub \(.*needs a newer Keras\)"):
        check_import("python", environment.python, "tf", library="keras_hub")
    (environment.packages / "keras_hub-0.32.0.dist-info" / "METADATA").write_text("Name: keras_hub\nVersion: 0.1\n")
    with pytest.raises(UserError, match=r"has keras-hub 0.1 \(needs >=0.21\)"):
        check_interpreter("python", environment.python, "tf", library="keras_hub")


def test_the_home_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = FakeEnvironment(tmp_path)
    environment.add("torch", "2.99.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_interpreter("a.python", "~/python", "torch")["torch"] == "2.99.1"


def test_old_packages_are_named(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path)
    environment.add("torch", "1.13.1", "raise AssertionError('imported')")
    with pytest.raises(UserError, match=r": has torch 1.13.1 \(needs <3,>=2.11\); .* -m pip install 'torch<3,>=2.11'$"):
        check_interpreter("python", environment.python, "torch")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ImportError('libtorch.so: no\\n such \\x1b[31mfile')", r"(such \x1b[31mfile)"),
        ("import os; os.kill(os.getpid(), 11)", "(ended by SIGSEGV)"),
        ("import os; os._exit(0)", "(exit code 0)"),
    ],
)
def test_a_framework_that_cannot_be_imported_is_named(code: str, expected: str, tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path)
    environment.add("torch", "2.99.1", f"print('a greeting')\n{code}")
    with pytest.raises(UserError) as raised:
        check_import("python", environment.python, "torch")
    assert str(raised.value).endswith(f": cannot import torch {expected}; repair that environment")


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = f'{interpreter.REPORT}{{"python": "3.9.2", "versions": {{}}}}\n'
    done = subprocess.CompletedProcess([], 0, output, "")
    monkeypatch.setattr(interpreter, "_run_program", lambda command: done)
    with pytest.raises(UserError, match=r": is Python 3.9.2, and Lockstep needs <3.14,>=3.11; name another$"):
        check_interpreter("python", sys.executable, "torch")


@pytest.mark.slow
def test_different_files_of_a_package_are_found(tmp_path: Path) -> None:
    pythons = []
    for name in ("a", "b"):
        environment = FakeEnvironment(tmp_path / name)
        environment.add("keras", "3.10.0", "x = 1")
        (environment.packages / "keras" / "layers").mkdir()
        (environment.packages / "keras" / "layers" / "norm.py").write_text(f"epsilon = '{name}'")
        pythons.append(environment.python)
    assert find_different_files("keras", *pythons) == ["keras/layers/norm.py"]
    assert find_different_files("no_such_package", *pythons) == []
