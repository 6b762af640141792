"""Map files: YAML with a line for each Keras variable and its transformation from PyTorch's parameters.

A user writes one to pair variables that cannot be paired automatically, and names it as model.map. A line is, for
example, `dense/kernel: fc.weight | transpose 1 0`.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from common.errors import UserError, build_write_error, error_reason
from common.map.description import ModelDescription
from common.map.pair_variables import ParameterMap
from common.map.transformation import ParameterTransformation, parse_transformation
from common.map.unmatched import describe_unmatched


def read_map(
    path: Path, torch_description: ModelDescription, keras_description: ModelDescription
) -> dict[str, ParameterTransformation]:
    """Read the transformations of a map file by the path of the Keras variable.

    Raises:
        UserError: The file cannot be read, is malformed, or names a variable that the models do not have.
    """
    try:
        loaded = OmegaConf.load(path)
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = error_reason(error)
        raise UserError(f"model.map={path!s}: cannot be read ({reason})") from error
    lines = OmegaConf.to_container(loaded) if isinstance(loaded, DictConfig) else None
    if not isinstance(lines, Mapping) or not all(isinstance(text, str) for text in lines.values()):
        raise UserError(f"model.map={path}: must have lines such as 'dense/kernel: fc.weight | transpose 1 0'")
    transformations: dict[str, ParameterTransformation] = {}
    for name, text in ((str(key), str(value)) for key, value in lines.items()):
        _check_variable(path, name, "Keras", keras_description.variables)
        try:
            transformations[name] = parse_transformation(text)
        except UserError as error:
            raise UserError(f"model.map={path}: {name}: {error}") from error
        for source in transformations[name].sources:
            _check_variable(path, source.name, "PyTorch", torch_description.variables)
    return transformations


def _check_variable(path: Path, name: str, side: str, variables: Iterable[str]) -> None:
    """Raise UserError if `name` is none of the variables of the model of `side`, "PyTorch" or "Keras"."""
    if name not in variables:
        suggestion = "".join(f"; did you mean {near}?" for near in get_close_matches(name, variables, 1, 0))
        raise UserError(f"model.map={path}: {name}: {side}'s model has no such variable{suggestion}")


def write_map(
    path: Path,
    parameter_map: ParameterMap,
    torch_description: ModelDescription,
    keras_description: ModelDescription,
) -> None:
    """Write all pairs, and the unmatched variables as comments. Raise UserError if the file cannot be created."""
    texts = {pair.keras: str(pair.transformation) for pair in parameter_map.variable_pairs}
    lines = yaml.safe_dump(texts, sort_keys=False, width=float("inf"), allow_unicode=True)
    comments = [f"# {line}" for line in describe_unmatched(parameter_map, torch_description, keras_description)]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write("\n".join(["# A Keras variable: its transformation from PyTorch.", *comments, lines]))
    except FileExistsError as error:
        raise UserError(f"write={path}: already exists; choose another name") from error
    except OSError as error:
        raise build_write_error(f"write={path}", error) from error
