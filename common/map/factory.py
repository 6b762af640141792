"""A user's factory, named as `module:function`, how its model takes its inputs, and what its layers say."""

import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.config.import_object import import_object
from common.errors import UserError, describe_error


def call_factory(key: str, factory: str, arguments: Mapping[str, Any]) -> Any:
    """What a factory returns. key: the config key that names it. Raises UserError."""
    try:
        return import_factory(key, factory)(**arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{key}={factory}: raised {describe_error(error)}") from error


def import_factory(key: str, factory: str) -> Callable[..., Any]:
    """Import it. Raises UserError where there is none."""
    module, colon, name = factory.partition(":")
    if not (module and colon and name):
        raise UserError(f"{key}={factory}: must be module:function, such as my_models.resnet:build")
    try:
        found = import_object(factory)
    except UserError as error:
        raise UserError(f"{key}={error}") from error
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"{key}={factory}: importing it raised {describe_error(error)}") from error
        raise UserError(
            f"{key}={factory}: no module {module} in the working directory or on the Python path "
            f"({sys.path[0] or 'here'}, ...)"
        ) from error
    except Exception as error:
        raise UserError(f"{key}={factory}: importing it raised {describe_error(error)}") from error
    if not callable(found):
        raise UserError(f"{key}={factory}: {module} has no function {name}")
    return found


def list_user_files() -> list[str]:
    """The files of the modules that are imported, but for installed packages and Lockstep itself."""
    here = Path(__file__).parents[2]
    installed = [Path(each) for each in {*sysconfig.get_paths().values(), *site.getsitepackages()}]
    own = [here / each for each in ("common", "torch_impl", "tf_impl")]
    found = {str(each.__file__) for each in list(sys.modules.values()) if getattr(each, "__file__", None)}
    outside = [Path(each).resolve() for each in found if each.endswith(".py") and Path(each).is_file()]
    return sorted(str(each) for each in outside if not any(each.is_relative_to(one) for one in (*installed, *own)))


def takes_inputs_by_name(key: str, call: Callable[..., Any], names: Sequence[str]) -> bool:
    """Whether a model's call takes inputs of these names; False where it takes one input alone, under another name.

    Raises UserError for a name that it does not take.
    """
    found = inspect.signature(call).parameters.values()
    own = [each for each in found if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    taken = [each.name for each in own if each.name not in ("self", "training")]
    unknown = [name for name in names if name not in taken]
    if not unknown or (any(each.kind is each.VAR_KEYWORD for each in found) and len(names) > 1):
        return True
    if len(names) == 1:
        return False
    raise build_unknown_input_error(key, unknown[0], taken, names)


def build_unknown_input_error(key: str, name: str, taken: Sequence[str], names: Sequence[str]) -> UserError:
    """The error of an input that a model does not take. names: of all inputs."""
    of = name.removesuffix("_mask")
    ragged = f"; it is 1 where {of} has values and 0 where a batch is padded" if of != name and of in names else ""
    return UserError(f"{key}: takes no input {name}, which the data has{ragged}; it takes {', '.join(taken)}")


def collect_plain_attributes(layer: object, names: Mapping[str, str]) -> dict[str, Any]:
    """Attributes of a layer, by the new names of theirs, that a process without its framework can read.

    Others, such as a parameter or an enum, are left out.
    """
    found = {new: _plain(getattr(layer, own)) for own, new in names.items() if hasattr(layer, own)}
    return {name: value for name, value in found.items() if value is not NotImplemented}


def _plain(value: Any) -> Any:
    """A number, a text, None or a tuple of such; else NotImplemented."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        items = tuple(_plain(each) for each in value)
        return NotImplemented if any(each is NotImplemented for each in items) else items
    return value if value is None or type(value) in (int, float, bool, str) else NotImplemented
