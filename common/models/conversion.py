"""Conversion of weights between a user's PyTorch and Keras models that are proven to be the same.

Fresh models load the source and the converted file from disk, and their outputs are compared, before the converted file
gets its name.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from common.errors import UserError, report_write_errors
from common.map.description import Arrays, ComputedPass
from common.map.input_specs import draw_inputs
from common.map.output_pairs import OutputPair, largest_difference, pair_outputs
from common.map.pair_models import PairedModels, PairingRequest
from common.map.pair_variables import ParameterMap
from common.map.proof import OUTPUT_TOLERANCE, map_weights
from common.map.side import Side, receive_all
from common.models.conversion_notes import describe_conversion
from common.models.conversion_paths import ConversionPaths
from common.models.loaded_weights import LoadedWeights, fit_types
from common.models.user_weights import CONSTANT_ROUNDING


@dataclass(frozen=True)
class ConvertedOutputs:
    """The differences between the outputs of the two models, each with its file, relative to the norm.

    Attributes:
        own_types: The difference in the models' own types, usually float32.
        float64: The difference in float64, after the source's weights were rounded to the target's types.
        rounding: The difference between a side's outputs in its own types and in float64, by the side's title.
    """

    own_types: float
    float64: float
    rounding: dict[str, float]


@dataclass(frozen=True)
class Conversion:
    """A finished conversion.

    Attributes:
        outputs: The differences of the outputs.
        notes: Sentences about what was not converted, or not exactly.
    """

    outputs: ConvertedOutputs
    notes: list[str] = field(default_factory=list)


def convert_weights(
    paths: ConversionPaths, models: PairedModels, request: PairingRequest, sides: Mapping[str, Side]
) -> Conversion:
    """Convert the weights of the source, and write the target if the outputs of both models agree.

    Args:
        paths: The files.
        models: The models, which are proven to be the same.
        request: The request that paired them.
        sides: New processes of stored_model, "torch" and "tf".

    Raises:
        UserError: The source does not fit the model, the target cannot be written, or the outputs differ.
    """
    if models.torch_description.is_keras:
        raise UserError(
            f"{paths.target_location}: both models are Keras's, whose files of weights are the same; remove convert"
        )
    _build_models(sides, request)
    names = ("torch", "tf") if paths.to_keras else ("tf", "torch")
    source, target = (sides[name] for name in names)
    source.send("load", location=paths.source_location, path=paths.source)
    target.send("weights")
    loaded, initial = receive_all(source, target)
    _check_constants(paths, models, loaded, source.call("weights"))
    converted = _convert(paths, models, loaded.arrays, initial)
    # The target's weights, converted back: rounded to the target's types, and with summed biases in the first of them
    counterparts = _convert(replace(paths, to_keras=not paths.to_keras), models, converted.arrays, loaded.arrays)
    with (
        report_write_errors(paths.target_location),
        tempfile.TemporaryDirectory(dir=paths.target.parent, prefix="lockstep-") as directory,
    ):
        temporary_paths = replace(paths, target=Path(directory, paths.target.name))
        target.call("save", location=paths.target_location, path=temporary_paths.target, weights=converted.arrays)
        stored = target.call("load", location=paths.target_location, path=temporary_paths.target)
        _check_stored(paths, converted.arrays, stored.arrays)
        outputs = _compare_outputs(temporary_paths, models, sides, counterparts.arrays)
        if not outputs.float64 <= OUTPUT_TOLERANCE:
            raise UserError(
                f"{paths.target_location}: not written, because with these weights the outputs of the two models "
                f"differ by {outputs.float64:.1e} of their norm in float64, which the proof with random weights did "
                "not show"
            )
        _publish(Path(directory), paths.target)
    notes = [*loaded.notes, *converted.notes, *describe_conversion(models, loaded.arrays, initial, paths.to_keras)]
    return Conversion(outputs, notes)


def _build_models(sides: Mapping[str, Side], request: PairingRequest) -> None:
    arrays = draw_inputs(request.inputs, request.seed)
    for name, side in sides.items():
        side.send(
            "build",
            key=f"model.{name}",
            factory=request.torch if name == "torch" else request.tf,
            arguments=request.arguments,
            inputs=request.inputs,
            arrays=arrays,
            seed=request.seed,
        )
    receive_all(*sides.values())


def _check_constants(paths: ConversionPaths, models: PairedModels, loaded: LoadedWeights, initial: Arrays) -> None:
    """Raise UserError if a file has other values of constants. The proof holds only for the values in the models."""
    description = models.torch_description if paths.to_keras else models.keras_description
    paired = models.parameter_map.torch_names | {pair.keras for pair in models.parameter_map.variable_pairs}
    constants = [
        name for name, variable in description.variables.items() if variable.is_constant and name not in paired
    ]
    for name in constants:
        stored, own = (arrays[name].astype(np.float64) for arrays in (loaded.arrays, initial))
        if not np.allclose(stored, own, CONSTANT_ROUNDING, 0, equal_nan=True):
            raise UserError(
                f"{paths.source_location}: {name}, which is not trained, has other values than in the model; let the "
                "factories create it with these values"
            )


def _convert(paths: ConversionPaths, models: PairedModels, arrays: Arrays, initial: Arrays) -> LoadedWeights:
    """Return the target's variables that have a counterpart, in the types of the target. Raise UserError."""
    if paths.to_keras:
        mapped = map_weights(models.parameter_map, arrays, models.keras_description)
    else:
        mapped = _map_to_torch(paths, models.parameter_map, arrays, initial)
    return fit_types(paths.target_location, mapped, initial)


def _map_to_torch(paths: ConversionPaths, parameter_map: ParameterMap, arrays: Arrays, initial: Arrays) -> Arrays:
    """Return PyTorch's variables. Variables that Keras lacks keep their initial values.

    Raises:
        UserError: Two variables of Keras that differ are one parameter of PyTorch.
    """
    mapped = {name: initial[name].copy() for name in initial if name in parameter_map.torch_names}
    for pair in parameter_map.variable_pairs:
        pair.transformation.to_torch(arrays[pair.keras], mapped)
    for pair in parameter_map.variable_pairs:
        restored = pair.transformation.to_keras(mapped)  # it has PyTorch's type, which may be narrower
        if not np.array_equal(restored, arrays[pair.keras].astype(restored.dtype), equal_nan=True):
            raise UserError(
                f"{paths.source_location}: {pair.keras} differs from another variable that is the same parameter in "
                f"PyTorch, {pair.transformation.join_sources()}; tie them in Keras too"
            )
    return mapped


def _check_stored(paths: ConversionPaths, converted: Arrays, stored: Arrays) -> None:
    """Raise UserError unless a fresh model that has loaded the converted file has the converted weights."""
    for name, array in converted.items():
        if not np.array_equal(array, stored[name], equal_nan=True):
            raise UserError(
                f"{paths.target_location}: not written, because the saved file does not restore {name}; let the "
                "model save this variable"
            )


def _compare_outputs(
    paths: ConversionPaths, models: PairedModels, sides: Mapping[str, Side], counterparts: Arrays
) -> ConvertedOutputs:
    """Compute both models with their files, in their own types and then in float64.

    In float64, the source gets `counterparts`, so that rounding does not hide a difference of the models.
    """
    own_types = _compute(paths, sides, {}, in_float64=False)
    float64 = _compute(paths, sides, counterparts, in_float64=True)
    pairs, error = pair_outputs(float64[0].outputs, float64[1].outputs, models.torch_description.has_channels)
    if error:
        raise UserError(f"{paths.target_location}: not written, because {error}")
    torch_pairs = [OutputPair(pair.torch, pair.torch, channels_move=False) for pair in pairs]
    keras_pairs = [OutputPair(pair.keras, pair.keras, channels_move=False) for pair in pairs]
    return ConvertedOutputs(
        largest_difference(pairs, *own_types),
        largest_difference(pairs, *float64),
        {
            "PyTorch": largest_difference(torch_pairs, own_types[0], float64[0]),
            "Keras": largest_difference(keras_pairs, own_types[1], float64[1]),
        },
    )


def _compute(
    paths: ConversionPaths, sides: Mapping[str, Side], source_weights: Arrays, in_float64: bool
) -> tuple[ComputedPass, ComputedPass]:
    files: list[tuple[str, Path, Arrays]] = [
        (paths.source_location, paths.source, source_weights),
        (paths.target_location, paths.target, {}),
    ]
    for side, (location, path, weights) in zip(sides.values(), files if paths.to_keras else files[::-1], strict=True):
        side.send("compute", location=location, path=path, weights=weights, in_float64=in_float64)
    torch_outputs, keras_outputs = receive_all(*sides.values())
    return ComputedPass(torch_outputs, {}), ComputedPass(keras_outputs, {})


def _publish(directory: Path, target: Path) -> None:
    """Move the files of a directory to the directory of the target, the target itself last.

    Raises:
        UserError: One of the files already exists there.
    """
    files = sorted(directory.iterdir(), key=lambda file: file.name == target.name)
    for file in files:
        if os.path.lexists(existing := target.with_name(file.name)):
            raise UserError(f"convert={target}: {existing} already exists; choose another name")
    for file in files:
        file.rename(target.with_name(file.name))
