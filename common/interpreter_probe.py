"""Program that reports the packages of an environment. It runs without any of these packages.

python -m common.interpreter_probe --versions PACKAGE... prints the versions of packages.
python -m common.interpreter_probe --import MODULE... imports modules and confirms each.
python -m common.interpreter_probe --sources MODULE prints the fingerprints of the files of a package.

`common.interpreter` runs it with the interpreter of the environment. It imports the standard library first of all.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import platform
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from common.versions import find_versions

REPORT, IMPORTED = "lockstep-probe: ", "lockstep-probe: imported "  # beginnings of the lines that the program prints


def hash_sources(module: str) -> dict[str, str]:
    """Return a fingerprint of each Python file of a package by its path in the package; {} for a missing package."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent
    fingerprints = {}
    for folder, _, names in os.walk(root, followlinks=True):  # some installers link the files of a package
        for file in (Path(folder, name) for name in names if name.endswith(".py")):
            with suppress(OSError):  # such as a link to nothing
                fingerprints[str(file.relative_to(root.parent))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return fingerprints


def report_versions(packages: list[str]) -> None:
    """Print the versions of Python and of packages."""
    report = {"python": platform.python_version(), "versions": find_versions(packages)}
    print("\n" + REPORT + json.dumps(report), flush=True)


def import_modules(modules: list[str]) -> None:
    """Import modules, and print the name of each after its import. Exit after the first that fails."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            sys.exit(f"{type(error).__name__}: {error}")
        print("\n" + IMPORTED + module, flush=True)


def exit_with(parent: int) -> None:
    """Exit when the command ends, also while an import hangs. parent: the process of the command."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=exit_with, args=(os.getppid(),), daemon=True).start()
    option, names = sys.argv[1], sys.argv[2:]
    if option == "--versions":
        report_versions(names)
    elif option == "--import":
        import_modules(names)
    else:
        print("\n" + REPORT + json.dumps(hash_sources(names[0])))
