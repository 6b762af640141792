"""Program that reports the packages of an environment: python -m common.interpreter_probe MODULE,... PACKAGE...

`common.interpreter` runs it with the interpreter of another environment, in which any package may be missing. The
program therefore imports the standard library, and last of all the modules.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from importlib import metadata

REPORT, IMPORTED = "lockstep-probe: ", "lockstep-probe: imported"  # beginnings of the lines that the program prints


def find_installed(packages: list[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


if __name__ == "__main__":
    report = {"python": platform.python_version(), "versions": find_installed(sys.argv[2:])}
    print("\n" + REPORT + json.dumps(report), flush=True)  # before an import that may end the process
    for module in sys.argv[1].split(","):
        importlib.import_module(module)
    print("\n" + IMPORTED, flush=True)
