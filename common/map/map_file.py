"""Map files: YAML, a Keras variable and its transformation from PyTorch in each line."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from common.errors import UserError, build_write_error, error_reason
from common.map.description import ModelDescription
from common.map.pair_variables import ParameterMap, find_candidates
from common.map.sublayers import list_variable_names
from common.map.transformation import ParameterTransformation, parse_transformation


def read_map(path: Path, torch: ModelDescription, keras: ModelDescription) -> dict[str, ParameterTransformation]:
    """Transformations by Keras path. Raises UserError for what cannot be read and for unknown names."""
    try:
        loaded = OmegaConf.load(path)
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = error_reason(error)
        raise UserError(f"model.map={path!s}: cannot be read ({reason})") from error
    lines = OmegaConf.to_container(loaded) if isinstance(loaded, DictConfig) else None
    if not isinstance(lines, Mapping) or not all(isinstance(text, str) for text in lines.values()):
        raise UserError(f"model.map={path}: must have lines such as 'dense/kernel: fc.weight | transpose 1 0'")
    found: dict[str, ParameterTransformation] = {}
    for name, text in ((str(key), str(value)) for key, value in lines.items()):
        _known(path, name, "Keras", keras.variables)
        try:
            found[name] = parse_transformation(text)
        except UserError as error:
            raise UserError(f"model.map={path}: {name}: {error}") from error
        for source in found[name].sources:
            _known(path, source.name, "PyTorch", torch.variables)
    return found


def _known(path: Path, name: str, side: str, names: Iterable[str]) -> None:
    if name not in names:
        near = [f"; did you mean {each}?" for each in get_close_matches(name, names, 1, 0)]
        raise UserError(f"model.map={path}: {name}: {side}'s model has no such variable" + "".join(near))


def write_map(path: Path, parameter_map: ParameterMap, torch: ModelDescription, keras: ModelDescription) -> None:
    """Write all pairs, and what is not matched as comments. Raises UserError where the file is there already."""
    texts = {each.keras: str(each.transformation) for each in parameter_map.variable_pairs}
    lines = yaml.safe_dump(texts, sort_keys=False, width=float("inf"), allow_unicode=True)
    comments = [f"# {line}" for line in describe_unmatched(parameter_map, torch, keras)]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write("\n".join(["# A Keras variable: its transformation from PyTorch.", *comments, lines]))
    except FileExistsError as error:
        raise UserError(f"write={path}: is there already; choose another name") from error
    except OSError as error:
        raise build_write_error(f"write={path}", error) from error


def describe_unmatched(parameter_map: ParameterMap, torch: ModelDescription, keras: ModelDescription) -> list[str]:
    """What has no counterpart, with the nearest candidates on the other side."""
    lines = []
    for side, description, other, names in (
        ("PyTorch", torch, keras, parameter_map.unmatched_torch),
        ("Keras", keras, torch, parameter_map.unmatched_keras),
    ):
        for name in names:
            near, shape = find_candidates(parameter_map, torch, keras, name), description.variables[name].shape
            listed = ", ".join(f"{each} {list(other.variables[each].shape)}" for each in near)
            words = f"nearest: {listed}" if near else f"nothing like it is left{_tied(parameter_map, side, shape)}"
            lines.append(f"not matched: {side}'s {name} {list(shape)}; {words}")
    return lines


def _tied(parameter_map: ParameterMap, side: str, shape: tuple[int, ...]) -> str:
    """What to do about a variable of this side that has the size of an embedding: perhaps it is tied on the other."""
    other = "Keras" if side == "PyTorch" else "PyTorch"
    for parts in parameter_map.layer_pairs:
        embedding = parts[other == "Keras"]
        if embedding.kind == "embedding" and sorted(embedding.sizes) == sorted(shape):
            (tied,) = (each for array in embedding.arrays.values() for each in list_variable_names(array))
            return f"; if it is tied to {tied} in {other}, tie it in {side} too"
    return ""
