"""Checks of the Python interpreter of another environment, which a side's processes run in.

The other environment needs the framework of the side, and the packages that Lockstep's processes of that side import.
Their versions are checked before a process starts. The import of a framework takes half of the start of a process, so
it is tried only after a process has failed.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement

from common.errors import UserError, one_line
from common.interpreter_probe import IMPORTED, REPORT
from common.run_module import module_command

PYTHON = Requirement("python>=3.11,<3.14")
# What a process of either side imports; a test compares the versions with pyproject.toml
SHARED_PACKAGES = (
    "filelock>=3.12",
    "huggingface-hub>=0.30",
    "hydra-core>=1.3.2,<1.4",
    "ml-dtypes>=0.3",
    "numpy>=1.26",
    "nvidia-ml-py>=12",
    "omegaconf>=2.3",
    "packaging>=22",
    "psutil>=6.0",
    "pyyaml>=6.0",
    "rich>=13.0",
    "safetensors>=0.4",
    "tensorboard>=2.16",
    "tokenizers>=0.20",
    "typing-extensions>=4.4",
    "xxhash>=3.4",
)
SHARED_MODULES = ("numpy", "ml_dtypes", "psutil")  # those of SHARED_PACKAGES with compiled code, which may not fit
FRAMEWORKS = {"torch": ("torch>=2.11,<3",), "tf": ("tensorflow>=2.16,<2.22", "keras>=3.3,<4")}
LIBRARIES = {"transformers": "transformers>=5.0", "keras_hub": "keras-hub>=0.21"}  # what BERT needs, by module
MODULES = {"torch": ("torch",), "tf": ("tensorflow", "keras")}
VARIABLES = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
CHECKED_INTERPRETERS = "LOCKSTEP_INTERPRETERS"  # environment variable: what a command or its parent has checked, JSON
MAX_SECONDS = 300  # longest time for the import of a framework, which may be on a slow disk
MAX_CHARACTERS = 300  # number of characters of the other interpreter's output that an error quotes
MAX_OUTPUT = 1 << 20  # bytes that it may print to a stream: a program that is not Python may never stop printing


class NoAnswerError(UserError):
    """A program of another interpreter did not end in time."""


def check_interpreter(key: str, python: str, framework: str, library: str | None = None) -> dict[str, str]:
    """Check that an interpreter has the packages of the processes of a side, and return their versions.

    No framework is imported. The commands that this command starts do not check it again.

    Args:
        key: The key of the config or the command that names the interpreter, for errors, such as "a.python".
        python: The path of the interpreter, or its name on PATH.
        framework: "torch" or "tf".
        library: The key of LIBRARIES that the side's model needs too; None for a model of the user, who knows what it
            needs.

    Raises:
        UserError: The interpreter cannot be started, lacks a package, or has a version that is too old or too new.
    """
    checked = json.loads(os.environ.get(CHECKED_INTERPRETERS, "{}"))
    if (name := f"{framework} {python} {library}") not in checked:
        texts = *FRAMEWORKS[framework], *([LIBRARIES[library]] if library else []), *SHARED_PACKAGES
        requirements = [Requirement(text) for text in texts]
        checked[name] = _find_versions(f"{key}={python}", python, framework, requirements)
        os.environ[CHECKED_INTERPRETERS] = json.dumps(checked)
    versions: dict[str, str] = checked[name]
    return versions


def check_import(key: str, python: str, framework: str, library: str | None = None) -> None:
    """Raise UserError if an interpreter cannot import the framework of a side. The arguments are `check_interpreter`'s.

    Call this function after a process of the interpreter has failed.
    """
    modules = (*SHARED_MODULES, *MODULES[framework], *([library] if library else []))
    probe = _run_probe(f"{key}={python}", python, framework, ["--import", *modules])
    imported = [line.removeprefix(IMPORTED) for line in probe.stdout.splitlines() if line.startswith(IMPORTED)]
    if probe.returncode or len(imported) < len(modules):
        module = modules[min(len(imported), len(modules) - 1)]
        raise UserError(f"{key}={python}: cannot import {module} ({_describe_end(probe)}); repair that environment")


def find_different_files(module: str, python_a: str | None, python_b: str | None) -> list[str]:
    """Return the Python files of a package that differ between two environments, such as keras/src/layers/layer.py.

    The list is empty if an environment does not answer.

    Args:
        module: The package, such as keras.
        python_a: An interpreter that `check_interpreter` has checked; None for this command's interpreter.
        python_b: The other interpreter.
    """
    fingerprints = []
    for python in (python_a, python_b):
        command = module_command("common.interpreter_probe", "--sources", module, python=python)
        try:
            probe = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=MAX_SECONDS
            )
        except (OSError, subprocess.SubprocessError):
            return []
        line = next(line for line in probe.stdout.splitlines() if line.startswith(REPORT))
        fingerprints.append(json.loads(line.removeprefix(REPORT)))
    a, b = fingerprints
    return sorted(file for file in {*a, *b} if a.get(file) != b.get(file))


def _find_versions(label: str, python: str, framework: str, requirements: Sequence[Requirement]) -> dict[str, str]:
    """Return the versions of the packages of an interpreter. Raise UserError as `check_interpreter` does."""
    names = dict.fromkeys(requirement.name for requirement in (*requirements, *map(Requirement, LIBRARIES.values())))
    probe = _run_probe(label, python, framework, ["--versions", *names])
    reports = [line.removeprefix(REPORT) for line in probe.stdout.splitlines() if line.startswith(REPORT)]
    if not reports and not probe.returncode:
        raise UserError(f"{label}: is not a Python interpreter: it did not run a Python program; {_advise(framework)}")
    if not reports:
        raise UserError(f"{label}: cannot run Lockstep ({_describe_end(probe)}); {_advise(framework)}")
    report = json.loads(reports[0])
    versions: dict[str, str] = {"python": report["python"], **report["versions"]}
    _check_versions(label, python, versions, requirements)
    return versions


def _run_probe(label: str, python: str, framework: str, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run the probe with an interpreter. Raise UserError if it cannot be started, or does not end."""
    command = module_command("common.interpreter_probe", *arguments, python=python)
    _check_file(label, command[0])
    try:
        return _run_program(command)
    except OSError as error:
        raise UserError(f"{label}: cannot be started ({error.strerror}); {_advise(framework)}") from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"{label}: does not answer within {MAX_SECONDS} s; {_advise(framework)}") from error
    except subprocess.SubprocessError as error:
        raise UserError(f"{label}: cannot run Lockstep ({error}); {_advise(framework)}") from error


def _run_program(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program, which may not be Python at all, and return its output.

    Raises:
        OSError: The program cannot be started.
        subprocess.SubprocessError: The program prints more than MAX_OUTPUT, or does not end within MAX_SECONDS.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **VARIABLES},
        start_new_session=True,  # it ends with the processes that it starts
    )

    def read(stream: IO[bytes]) -> bytes:
        output = stream.read(MAX_OUTPUT + 1)
        if len(output) > MAX_OUTPUT:
            process.kill()
        return output

    with process, ThreadPoolExecutor(2) as pool:
        assert process.stdout is not None and process.stderr is not None
        reading = [pool.submit(read, stream) for stream in (process.stdout, process.stderr)]
        try:
            process.wait(MAX_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    outputs = [result.result() for result in reading]
    if max(map(len, outputs)) > MAX_OUTPUT:
        raise subprocess.SubprocessError(f"prints more than {MAX_OUTPUT >> 20} MiB")
    texts = [output.decode(errors="replace") for output in outputs]
    return subprocess.CompletedProcess(command, process.returncode, *texts)


def _check_file(label: str, python: str) -> None:
    """Raise UserError unless `python` names a file that can be executed."""
    if shutil.which(python) is not None:
        return
    if Path(python).is_dir():
        raise UserError(f"{label}: is a directory; name its interpreter, such as {Path(python, 'bin', 'python')}")
    if Path(python).exists():
        raise UserError(f"{label}: is not executable; name the interpreter of an environment, such as venv/bin/python")
    raise UserError(f"{label}: no such file; name the interpreter of an environment, such as venv/bin/python")


def _check_versions(label: str, python: str, versions: Mapping[str, str], requirements: Sequence[Requirement]) -> None:
    """Raise UserError if Python or a package does not have a version that Lockstep needs, or a package is missing."""
    if not PYTHON.specifier.contains(versions["python"], prereleases=True):
        raise UserError(f"{label}: is Python {versions['python']}, and Lockstep needs {PYTHON.specifier}; name another")
    faults = []
    for requirement in requirements:
        version = versions.get(requirement.name)
        if version is None:
            faults.append((requirement, f"no {requirement.name}"))
        elif not requirement.specifier.contains(version, prereleases=True):
            faults.append((requirement, f"{requirement.name} {version}"))
    if faults:
        described = ", ".join(f"{text} (needs {requirement.specifier})" for requirement, text in faults)
        packages = " ".join(f"'{requirement}'" for requirement, _ in faults)
        raise UserError(f"{label}: has {described}; {python} -m pip install {packages}")


def _describe_end(probe: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line that the probe printed to standard error, or the signal that ended it."""
    if probe.returncode < 0:
        return f"ended by {signal.Signals(-probe.returncode).name}"
    lines = [line for line in probe.stderr.splitlines() if line.strip()]
    return one_line(lines[-1])[:MAX_CHARACTERS] if lines else f"exit code {probe.returncode}"


def _advise(framework: str) -> str:
    needs = " and ".join(str(Requirement(text)) for text in FRAMEWORKS[framework])
    return f"name the Python {PYTHON.specifier} of an environment with {needs}"
