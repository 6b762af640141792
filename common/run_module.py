"""Runs a module as `python -m` does, but finds Lockstep's packages first: python run_module.py MODULE ARGUMENT...

`python -m` looks in the current directory first. A package of the user that is also called `common` would hide
Lockstep's there. All processes that Lockstep starts are started by this file.
"""

from __future__ import annotations  # an interpreter that is too old must get as far as the check of its version

import importlib
import os
import runpy
import sys
import traceback
from pathlib import Path
from types import FrameType

PACKAGES = ("common", "torch_impl", "tf_impl")
IMPORT_SYSTEM = ("importlib", "runpy")  # the beginnings of the names of its modules
ROOT = str(Path(__file__).resolve().parents[1])  # the directory of the packages
OWN_FILES = tuple(str(Path(ROOT, package)) + os.sep for package in PACKAGES)  # beginnings of the names of their files


def module_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """Return the command that runs a module. `python`: another environment's interpreter; None for this one's."""
    interpreter = os.path.expanduser(python or sys.executable)  # noqa: PTH111  Path refuses an unknown user
    return [interpreter, __file__, module, *arguments]


def import_own_packages() -> None:
    """Import Lockstep's packages, so that later imports of their modules do not search the current directory."""
    sys.path.insert(0, ROOT)
    for package in PACKAGES:
        importlib.import_module(package)
    sys.path.remove(ROOT)


def find_failed_import(error: BaseException) -> tuple[str, list[str]]:
    """Return the package of others whose import raised an error that Lockstep's code did not handle.

    The name is empty if the error has another cause. The list has the files whose code Python was running.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    frames = [frame for frame in frames if not _get_module(frame).startswith(IMPORT_SYSTEM)]
    indices = [index for index, frame in enumerate(frames) if frame.f_code.co_filename.startswith(OWN_FILES)]
    name, outside = "", frames[indices[-1] + 1 :]
    if outside and outside[0].f_code.co_name == "<module>":
        name = _get_module(outside[0])
    elif not outside and isinstance(error, ImportError):
        name = error.name or ""
    package = name.partition(".")[0]
    files = [frame.f_code.co_filename for frame in outside]
    return "" if package in (*PACKAGES, "__main__") else package, files


def _get_module(frame: FrameType) -> str:
    """Return the name of the module of a frame; "" for code that a program has compiled itself."""
    name: str = frame.f_globals.get("__name__", "")
    return name


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path.cwd())  # `python -m` begins the path with it, not with the directory of this file
    import_own_packages()
    from common.hidden_packages import hide_packages_of_keras

    hide_packages_of_keras()
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except Exception as error:
        package, files = find_failed_import(error)
        if not package:
            raise
        from common.errors import USER_ERROR, describe_error, find_user_file

        # A file of the user may have the name of a package, and then Python imports that file
        advice = "correct or rename your file" if any(map(find_user_file, files)) else "repair that environment"
        reason = f"cannot import {package} ({describe_error(error)}); {advice}"
        print(f"error: {sys.executable}: {reason}", file=sys.stderr)
        sys.exit(USER_ERROR)
