"""Map files: YAML, a Keras variable and its transformation from PyTorch in each line."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from common.errors import UserError, build_write_error, error_reason
from common.map.description import Description
from common.map.pairing import Pairing, candidates
from common.map.parts import names_of
from common.map.transformations import Transformation, parse


def read_map(path: Path, torch: Description, keras: Description) -> dict[str, Transformation]:
    """Transformations by Keras path. Raises UserError for what cannot be read and for unknown names."""
    try:
        loaded = OmegaConf.load(path)
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = error_reason(error)
        raise UserError(f"model.map={path!s}: cannot be read ({reason})") from error
    lines = OmegaConf.to_container(loaded) if isinstance(loaded, DictConfig) else None
    if not isinstance(lines, Mapping) or not all(isinstance(text, str) for text in lines.values()):
        raise UserError(f"model.map={path}: must have lines such as 'dense/kernel: fc.weight | transpose 1 0'")
    found: dict[str, Transformation] = {}
    for name, text in ((str(key), str(value)) for key, value in lines.items()):
        _known(path, name, "Keras", keras.variables)
        try:
            found[name] = parse(text)
        except UserError as error:
            raise UserError(f"model.map={path}: {name}: {error}") from error
        for source in found[name].sources:
            _known(path, source.name, "PyTorch", torch.variables)
    return found


def _known(path: Path, name: str, side: str, names: Iterable[str]) -> None:
    if name not in names:
        near = [f"; did you mean {each}?" for each in get_close_matches(name, names, 1, 0)]
        raise UserError(f"model.map={path}: {name}: {side}'s model has no such variable" + "".join(near))


def write_map(path: Path, pairing: Pairing, torch: Description, keras: Description) -> None:
    """Write all pairs, and what is not matched as comments. Raises UserError where the file is there already."""
    texts = {each.keras: str(each.transformation) for each in pairing.pairs}
    lines = yaml.safe_dump(texts, sort_keys=False, width=float("inf"), allow_unicode=True)
    comments = [f"# {line}" for line in unmatched_lines(pairing, torch, keras)]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write("\n".join(["# A Keras variable: its transformation from PyTorch.", *comments, lines]))
    except FileExistsError as error:
        raise UserError(f"write={path}: is there already; choose another name") from error
    except OSError as error:
        raise build_write_error(f"write={path}", error) from error


def unmatched_lines(pairing: Pairing, torch: Description, keras: Description) -> list[str]:
    """What has no counterpart, with the nearest candidates on the other side."""
    lines = []
    for side, description, other, names in (
        ("PyTorch", torch, keras, pairing.unmatched_torch),
        ("Keras", keras, torch, pairing.unmatched_keras),
    ):
        for name in names:
            near, shape = candidates(pairing, torch, keras, name), description.variables[name].shape
            listed = ", ".join(f"{each} {list(other.variables[each].shape)}" for each in near)
            words = f"nearest: {listed}" if near else f"nothing like it is left{_tied(pairing, side, shape)}"
            lines.append(f"not matched: {side}'s {name} {list(shape)}; {words}")
    return lines


def _tied(pairing: Pairing, side: str, shape: tuple[int, ...]) -> str:
    """What to do about a variable of this side that has the size of an embedding: perhaps it is tied on the other."""
    other = "Keras" if side == "PyTorch" else "PyTorch"
    for parts in pairing.parts:
        embedding = parts[other == "Keras"]
        if embedding.kind == "embedding" and sorted(embedding.sizes) == sorted(shape):
            (tied,) = (each for array in embedding.arrays.values() for each in names_of(array))
            return f"; if it is tied to {tied} in {other}, tie it in {side} too"
    return ""
