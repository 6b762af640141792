"""The initial weights of a user's model, which its factory draws or a checkpoint holds.

A side is a process of one framework, "torch" or "tf", that has built the model. A user may have only one of the models.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np

from common.config.models import CustomModelSettings
from common.errors import UserError
from common.map.description import ModelDescription
from common.map.pair_models import PairedModels
from common.map.pair_variables import ParameterMap
from common.map.side import Side
from common.models.checkpoint_kinds import describe_checkpoint, find_tensorflow_prefix
from common.models.loaded_weights import check_finite
from common.models.summed_biases import list_other_terms, list_sums
from common.models.tensor_names import match_names
from common.models.weight_files import FLOAT_TYPES, read_weight_file

log = logging.getLogger("lockstep")

TORCH_SUFFIXES, KERAS_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt"), (".h5", ".hdf5", ".keras")
ACCEPTED_FILES = f"a file of .safetensors, {', '.join((*TORCH_SUFFIXES, *KERAS_SUFFIXES))}"
# Tolerance for a constant, a buffer that is not trained: the rounding of bfloat16, the coarsest type of a checkpoint
CONSTANT_ROUNDING = 2**-8


def read_weights(
    settings: CustomModelSettings,
    sides: Mapping[str, Side],
    descriptions: Mapping[str, ModelDescription],
    models: PairedModels | None,
) -> dict[str, np.ndarray]:
    """Return the weights by PyTorch's names, or by Keras's paths if there is no PyTorch model. Raise UserError.

    Constants are left out, since no step changes them.

    Args:
        settings: The settings of the model, which may name a checkpoint.
        sides: The processes that have built the models.
        descriptions: The descriptions of the same models.
        models: Both models with their parameter map; None if there is only one model.
    """
    main = "torch" if "torch" in sides else "tf"
    weights: dict[str, np.ndarray] = models.initial_weights if models else sides[main].call("weights")
    parameter_map = models.parameter_map if models else None
    variables = descriptions[main].variables
    if settings.checkpoint is not None:
        constants = {name for name, variable in variables.items() if variable.is_constant}
        has_keras_two = any(description.is_keras_two for description in descriptions.values())
        stored = _read_checkpoint(
            settings.checkpoint, weights, sides, parameter_map, constants, has_keras_two, descriptions[main].aliases
        )
        for name, array in stored.items():
            check_finite(f"model.checkpoint={settings.checkpoint}", name, array, weights[name])
        weights |= stored
    folded = fold_sums(weights, parameter_map)
    return {name: array for name, array in folded.items() if not variables[name].is_constant}


def fold_sums(weights: dict[str, np.ndarray], parameter_map: ParameterMap | None) -> dict[str, np.ndarray]:
    """If the sum of several biases of PyTorch is one bias in Keras, set the first to the sum, and the others to zero.

    Keras can hold only the sum. With this choice, both frameworks start and continue with the same values.
    """
    sums = {names[0]: np.sum([weights[name] for name in names], axis=0) for names in list_sums(parameter_map)}
    return weights | sums | {name: np.zeros_like(weights[name]) for name in list_other_terms(parameter_map)}


def _read_checkpoint(
    checkpoint: str,
    drawn: Mapping[str, np.ndarray],
    sides: Mapping[str, Side],
    parameter_map: ParameterMap | None,
    constants: Collection[str],
    has_keras_two: bool,
    aliases: Mapping[str, str],
) -> dict[str, np.ndarray]:
    path = Path(checkpoint)
    if find_tensorflow_prefix(path) is not None and not has_keras_two:
        raise UserError(f"model.checkpoint={path}: {describe_checkpoint(path)}; give {ACCEPTED_FILES}")
    if path.suffix in KERAS_SUFFIXES or find_tensorflow_prefix(path) is not None:
        return _read_keras_checkpoint(path, drawn, sides, parameter_map)
    if path.suffix in TORCH_SUFFIXES:
        if "torch" not in sides:
            raise UserError(f"model.checkpoint={path}: Keras cannot read it; give model.torch=... too, or another file")
        stored = sides["torch"].call("read_checkpoint", path=str(path))
    elif path.suffix == ".safetensors":
        stored = read_weight_file(path)
    else:
        raise UserError(f"model.checkpoint={path}: unknown kind of file; give {ACCEPTED_FILES}")
    floats = {name: array for name, array in stored.items() if array.dtype.name in FLOAT_TYPES}
    named, note = match_names(f"model.checkpoint={path}", floats, drawn.keys() - constants - set(aliases.values()))
    if note:
        log.warning("model.checkpoint=%s: %s", path, note)
    return _select_weights(path, named, drawn, constants, aliases)


def _read_keras_checkpoint(
    path: Path, drawn: Mapping[str, np.ndarray], sides: Mapping[str, Side], parameter_map: ParameterMap | None
) -> dict[str, np.ndarray]:
    if "tf" not in sides:
        raise UserError(f"model.checkpoint={path}: PyTorch cannot read it; give model.tf=... too, or another file")
    stored: dict[str, np.ndarray] = sides["tf"].call("read_checkpoint", path=str(path))
    if parameter_map is None:
        return stored
    weights = {name: array.copy() for name, array in drawn.items()}
    for pair in parameter_map.variable_pairs:
        pair.transformation.to_torch(stored[pair.keras], weights)  # writes into `weights`
    return weights


def _select_weights(
    path: Path,
    stored: Mapping[str, np.ndarray],
    drawn: Mapping[str, np.ndarray],
    constants: Collection[str],
    aliases: Mapping[str, str],
) -> dict[str, np.ndarray]:
    """Return the stored weights that the model has. The file may have a tied tensor under any of its names.

    Raises:
        UserError: A parameter is missing or has another shape, a constant has another value than in the model, the
            names of a tied tensor have different values, or the checkpoint has a tensor that the model lacks. Such a
            tensor is accepted if it equals a weight of the model, because it may have been tied to this weight.
    """
    stored = {aliases.get(name, name): array for name, array in stored.items()} | dict(stored)
    for name, array in drawn.items():
        if name not in stored:
            if name in constants:  # a buffer that is not persistent
                continue
            raise UserError(f"model.checkpoint={path}: has no {name}; it has {', '.join(list(stored)[:5])}, ...")
        if stored[name].shape != array.shape:
            raise UserError(
                f"model.checkpoint={path}: {name} has the shape {list(stored[name].shape)}, the model's "
                f"{list(array.shape)}; give the checkpoint of this model"
            )
        if name in constants and not np.allclose(stored[name], array, CONSTANT_ROUNDING, 0, equal_nan=True):
            raise UserError(
                f"model.checkpoint={path}: the buffer {name}, which is not trained, has other values than in the model"
                "; let model.torch create it with these values"
            )
    weights = {name: stored[name] for name in drawn if name in stored}
    for name in stored.keys() - weights.keys():
        first = aliases.get(name)
        if first is not None and np.array_equal(stored[name], weights[first], equal_nan=True):
            continue
        if first is not None:
            raise UserError(
                f"model.checkpoint={path}: {first} and {name} differ, and the model has one tensor for both; let the "
                "factory build the model of this file"
            )
        if not _is_tied(stored[name], weights.values()):
            raise UserError(
                f"model.checkpoint={path}: has {name}, which the model does not have; remove it from the file, or give "
                "the checkpoint of this model"
            )
    return weights


def _is_tied(tensor: np.ndarray, weights: Iterable[np.ndarray]) -> bool:
    """Check whether a tensor equals one of the weights.

    A tensor whose elements are all equal, such as a zero bias, does not count, because it may be equal by chance.
    """
    is_drawn = tensor.size > 0 and bool((tensor != tensor.flat[0]).any())
    return is_drawn and any(np.array_equal(tensor, array, equal_nan=True) for array in weights)
