"""Finished runs that were made on another machine: the data, weights and code that a repetition needs here."""

import glob
import importlib.util
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from common.config.saved_config import CONFIG, read_flat_values
from common.config.schema import list_code, list_code_keys
from common.diagnose.overrides import quote_value
from common.errors import UserError
from common.records.bundle import INPUTS
from common.records.summary import read_final_summary
from common.run.packed_inputs import DATA_DIRECTORY, PATH_KEYS, WEIGHTS_DIRECTORY, verify_inputs

CACHE_KEY = "cache_dir"


def place_inputs(run_dir: Path, keys: Collection[str]) -> list[str]:
    """Return the overrides that give a repetition of a run the run's data and initial weights on this machine.

    Args:
        run_dir: The run directory.
        keys: The config keys that the user's own command sets for this side.

    Raises:
        UserError: The config names files that are not here, or what the run brings is damaged.
    """
    values = read_flat_values(run_dir / CONFIG)
    packed = run_dir / INPUTS
    if packed.is_dir():  # then nothing that the config names by a path is read
        if CACHE_KEY in keys:
            raise UserError(f"{CACHE_KEY}: {run_dir} has its data and its weights in {INPUTS}/; remove {CACHE_KEY}=")
        summary = read_final_summary(run_dir)
        assert summary is not None
        verify_inputs(packed / DATA_DIRECTORY, packed / WEIGHTS_DIRECTORY, summary)
        return [f"{CACHE_KEY}={quote_value(str(packed.absolute()))}"]
    named = {key: values.get(key) for key in PATH_KEYS if key not in keys and key.partition(".")[0] not in keys}
    missing = [f"{key}={value}" for key, value in named.items() if isinstance(value, str) and _is_missing(key, value)]
    if missing:
        raise UserError(
            f"{run_dir}: its config.yaml names files that are not here: {', '.join(missing)}; pass these keys with "
            "paths of this machine, or a bundle, which python -m common.export bundle=RUN_DIR makes on the "
            "other machine"
        )
    # The cache directory of another machine is not created here. A directory named "inputs" belonged to a bundle that
    # an earlier diagnosis unpacked for a while, so it is not used either.
    cache = values.get(CACHE_KEY)
    is_here = isinstance(cache, str) and os.path.isdir(cache) and Path(cache).name != INPUTS  # noqa: PTH112
    return [f"{CACHE_KEY}={quote_value(cache)}"] if is_here else []


def check_imports(run_dir: Path) -> None:
    """Raise UserError unless the modules of the code that a run's config names are here. Nothing is imported."""
    for key, module in _list_modules(run_dir):
        package = module.partition(".")[0]
        try:
            is_here = importlib.util.find_spec(package) is not None
        except (ImportError, ValueError):
            is_here = False
        if not is_here:
            raise UserError(
                f"{run_dir}: needs the module {package} of {key}, and a run directory or bundle has no code; put the "
                "module's directory into PYTHONPATH"
            )


def _list_modules(run_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield the override that names code, and the module, of all code that a config names."""
    values = read_flat_values(run_dir / CONFIG)
    extensions = values.get("extensions")
    for extension in extensions if isinstance(extensions, list) else ():
        yield f"extensions=[{extension}]", str(extension)
    for key in list_code_keys():
        for name in list_code(values.get(key)):
            yield f"{key}={name}", name.partition(":")[0]


def _is_missing(key: str, value: str) -> bool:
    """Check whether a value is a path that is not on this machine. If it is a glob, only its directory is checked."""
    is_relative = value.count("/") <= 1 and not value.startswith(("/", "~"))
    if (key in ("model.checkpoint", "data.path") and is_relative) or (key == "data.tokenizer" and value == "bytes"):
        return False  # the name of a hub
    path = os.path.expanduser(value)  # noqa: PTH111  Path's methods raise errors for long names and unknown users
    while glob.has_magic(path):  # the walk that finds the files may be as long as the sender likes
        path = os.path.dirname(path)  # noqa: PTH120
    return not os.path.exists(path or ".")  # noqa: PTH110
