"""Files of public repositories, which are imported from clones and are not part of this repository.

A clone of OWNER/NAME is expected at build/zoo/repositories/OWNER/NAME. Importing a file runs its code.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

CLONES = Path("build/zoo/repositories")


def import_file(repository: str, file: str) -> ModuleType:
    """Import a Python file of a cloned repository, such as OWNER/NAME. Raise ModuleNotFoundError if it is missing."""
    path = CLONES / repository / file
    if not path.is_file():
        raise ModuleNotFoundError(
            f"No module named {file} in {CLONES / repository}; clone https://github.com/{repository}"
        )
    spec = importlib.util.spec_from_file_location(f"cloned_{path.stem.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
