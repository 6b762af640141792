"""The initial weights of a user's model: as its factory draws them, or those of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from common.config.models import CustomModelSettings
from common.errors import UserError
from common.map.description import Description
from common.map.match import Match
from common.map.pairing import Pairing
from common.map.side import Side

OF_TORCH, OF_KERAS = (".pt", ".pth", ".bin"), (".h5", ".keras")


def read_weights(
    settings: CustomModelSettings,
    sides: Mapping[str, Side],
    descriptions: Mapping[str, Description],
    found: Match | None,
) -> dict[str, np.ndarray]:
    """By PyTorch's names, or by Keras's paths where there is no PyTorch model. Raises UserError."""
    main = "torch" if "torch" in sides else "tf"
    weights: dict[str, np.ndarray] = found.drawn if found else sides[main].call("weights")
    pairing = found.pairing if found else None
    if settings.checkpoint is not None:
        weights |= _of_checkpoint(settings.checkpoint, weights, main, sides, pairing)
    variables = descriptions[main].variables
    folded = fold_sums(weights, pairing)
    return {name: array for name, array in folded.items() if not variables[name].constant}


def fold_sums(weights: dict[str, np.ndarray], pairing: Pairing | None) -> dict[str, np.ndarray]:
    """With two biases that are one in Keras in the first of them, and the second zero."""
    for each in pairing.pairs if pairing else ():
        if each.transformation.joined == "+":
            first, *rest = each.transformation.sources
            weights[first.name] = np.sum([weights[source.name] for source in each.transformation.sources], axis=0)
            weights |= {source.name: np.zeros_like(weights[source.name]) for source in rest}
    return weights


def _of_checkpoint(
    checkpoint: str, drawn: Mapping[str, np.ndarray], main: str, sides: Mapping[str, Side], pairing: Pairing | None
) -> dict[str, np.ndarray]:
    path = Path(checkpoint)
    if path.suffix in OF_KERAS:
        if "tf" not in sides:
            raise UserError(f"model.checkpoint={path}: Keras's; give model.tf=... too, or a PyTorch checkpoint")
        theirs: dict[str, np.ndarray] = sides["tf"].call("read_checkpoint", path=str(path))
        if pairing is None:
            return theirs
        found = {name: array.copy() for name, array in drawn.items()}
        for each in pairing.pairs:
            each.transformation.to_torch(theirs[each.keras], found)
        return found
    if path.suffix in OF_TORCH:
        if "torch" not in sides:
            raise UserError(f"model.checkpoint={path}: PyTorch's; give model.torch=... too, or a Keras checkpoint")
        found = sides["torch"].call("read_checkpoint", path=str(path))
    elif path.suffix == ".safetensors":
        found = _of_safetensors(path)
    else:
        raise UserError(
            f"model.checkpoint={path}: not a kind of file that is known; give .safetensors, "
            f"{', '.join((*OF_TORCH, *OF_KERAS))}"
        )
    return _checked(path, found, drawn)


def _of_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"model.checkpoint={path}: cannot be read ({error}); give a safetensors file") from error


def _checked(path: Path, found: Mapping[str, np.ndarray], drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the model has of it. Raises UserError for what is missing or has another shape."""
    for name, array in drawn.items():
        if name not in found:
            raise UserError(f"model.checkpoint={path}: has no {name}; it has {', '.join(list(found)[:5])}, ...")
        if found[name].shape != array.shape:
            raise UserError(
                f"model.checkpoint={path}: {name} has the shape {list(found[name].shape)}, the model's "
                f"{list(array.shape)}; give the checkpoint of this model"
            )
    return {name: found[name] for name in drawn}
