"""Pairs of variables and of layers of two recorded models.

Models of one framework are paired by names, or else in the order of their variables. Models of two frameworks are
paired as common.map pairs them; PyTorch's arrays are then converted to Keras's layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.layer_vocabulary import find_common_kind, translate_attributes
from common.diagnose.recorded.recorded_side import RecordedSide
from common.errors import UserError
from common.map.comparable_layers import list_comparable_layers
from common.map.description import LayerDescription, ModelDescription, VariableDescription
from common.map.map_file import read_map
from common.map.pair_variables import ParameterMap, VariablePair, pair_variables

Arrays = Mapping[str, np.ndarray]


class ReadArray(Protocol):
    """Function that returns a variable's array from those of its side, or None if it is missing."""

    def __call__(self, arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        """Return the array in the common layout. `is_gradient`: whether the arrays are gradients or slots."""


@dataclass(frozen=True)
class VariableMatch:
    """A variable of A and its counterpart in B.

    Attributes:
        title: Name of the pair in reports.
        names_a: Names of A's variables of which it consists.
        names_b: The same of B.
        read_a: Returns the array in the common layout from A's arrays by name; None if it is missing.
        read_b: The same of B.
    """

    title: str
    names_a: tuple[str, ...]
    names_b: tuple[str, ...]
    read_a: ReadArray
    read_b: ReadArray


@dataclass(frozen=True)
class ModelPairs:
    """Pairs of variables and layers, and the names of A's and B's variables that have no counterpart."""

    variables: list[VariableMatch]
    layers: list[LayerMatch]
    unpaired_a: list[str]
    unpaired_b: list[str]


def pair_recorded_models(a: RecordedSide, b: RecordedSide, map_file: Path | None) -> ModelPairs:
    """Pair the variables and layers of two records. Raise UserError for a map file that does not fit."""
    if a.is_torch == b.is_torch:
        if map_file is not None:
            raise UserError(f"map={map_file}: both records are of one framework; remove it")
        variables = _pair_by_name(a, b)
        layers = _pair_layers_by_path(a, b)
    else:
        torch, keras = (a, b) if a.is_torch else (b, a)
        descriptions = describe_recorded_model(torch), describe_recorded_model(keras)
        parameter_map = pair_variables(*descriptions, read_map(map_file, *descriptions) if map_file else {})
        variables = [_match_frameworks(pair, a.is_torch) for pair in parameter_map.variable_pairs]
        layers = _match_layers(parameter_map, a.is_torch)
    paired_a = {name for match in variables for name in match.names_a}
    paired_b = {name for match in variables for name in match.names_b}
    return ModelPairs(
        variables,
        layers,
        [name for name in a.read_weights(0) if name not in paired_a],
        [name for name in b.read_weights(0) if name not in paired_b],
    )


def describe_recorded_model(side: RecordedSide) -> ModelDescription:
    """Return the description of a recorded model, as common.map uses it."""
    model = side.record.facts["model"]
    assert model is not None
    layers = [
        LayerDescription(
            layer["kind"],
            layer["path"],
            translate_attributes(layer, side.is_torch),
            {role: name for role, name in layer["variables"].items() if name in model["variables"]},
            tuple(layer["unflattened_shape"]) if layer["unflattened_shape"] else None,
            layer["composite"],
        )
        for layer in model["layers"]
        if layer["variables"]
    ]
    variables = {
        name: VariableDescription(name, tuple(facts["shape"]), facts["trainable"])
        for name, facts in model["variables"].items()
        if "float" in facts["dtype"]
    }
    owned = {name for layer in layers for name in layer.variables.values()}
    return ModelDescription(layers, variables, [name for name in variables if name not in owned], channels=False)


def _pair_by_name(a: RecordedSide, b: RecordedSide) -> list[VariableMatch]:
    """Pair variables of equal names; if no name is equal, pair all in their order.

    A variable that only one side ties to others is paired with all of theirs: its gradient is the sum of theirs.
    """
    names_a, names_b = [*a.read_weights(0)], [*b.read_weights(0)]
    pairs = [(name, name) for name in names_a if name in names_b]
    if not pairs and len(names_a) == len(names_b):
        pairs = list(zip(names_a, names_b, strict=True))
    untied_a, untied_b = _list_untied(names_a, b), _list_untied(names_b, a)
    matches = []
    for name_a, name_b in pairs:
        all_a, all_b = (name_a, *untied_a.get(name_b, ())), (name_b, *untied_b.get(name_a, ()))
        matches.append(VariableMatch(join_titles(name_a, name_b), all_a, all_b, _read_sum(all_a), _read_sum(all_b)))
    return matches


def _list_untied(names: list[str], other: RecordedSide) -> dict[str, list[str]]:
    """Return the names of a side's variables that the other side ties to another variable, by the name of that one."""
    model = other.record.facts["model"]
    others = other.read_weights(0)
    untied: dict[str, list[str]] = {}
    for group in model["tied"] if model is not None else []:
        kept = next((name for name in group if name in others), None)
        if kept is not None:
            untied[kept] = [name for name in group if name in names and name not in others]
    return untied


def _read_by_name(name: str) -> ReadArray:
    def read(arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        return arrays.get(name)

    return read


def _read_sum(names: tuple[str, ...]) -> ReadArray:
    """Return the reader of the first of several variables; their gradients are added up."""

    def read(arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        known = [arrays[name] for name in names if name in arrays]
        if not is_gradient or len(known) < 2:
            return arrays.get(names[0])
        return np.sum(known, axis=0)

    return read


def _match_frameworks(pair: VariablePair, a_is_torch: bool) -> VariableMatch:
    names, transformation = tuple(source.name for source in pair.transformation.sources), pair.transformation

    def read_torch(arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        convert = transformation.gradient_to_keras if is_gradient else transformation.to_keras
        try:
            return convert(arrays)
        except (KeyError, ValueError):  # a tensor is missing, or of another shape
            return None

    read_keras = _read_by_name(pair.keras)
    if a_is_torch:
        return VariableMatch(join_titles(names[0], pair.keras), names, (pair.keras,), read_torch, read_keras)
    return VariableMatch(join_titles(pair.keras, names[0]), (pair.keras,), names, read_keras, read_torch)


def _pair_layers_by_path(a: RecordedSide, b: RecordedSide) -> list[LayerMatch]:
    """Pair layers of equal paths; if no path is equal, pair all in the order of execution."""
    layers_b = {layer["path"]: layer for layer in b.layers}
    pairs = [(layer, layers_b[layer["path"]]) for layer in a.layers if layer["path"] in layers_b]
    if not pairs and len(a.layers) == len(b.layers):
        pairs = list(zip(a.layers, b.layers, strict=True))
    return [
        LayerMatch(
            find_common_kind(layer["kind"]),
            layer["path"],
            layer["path"],
            other["path"],
            translate_attributes(layer, a.is_torch),
            translate_attributes(other, b.is_torch),
        )
        for layer, other in pairs
    ]


def _match_layers(parameter_map: ParameterMap, a_is_torch: bool) -> list[LayerMatch]:
    """Return the matches of the layers that common.map can compare."""
    matches = []
    for layer in list_comparable_layers(parameter_map.layer_pairs):
        sides = [(layer.torch, layer.torch_settings), (layer.keras, layer.keras_settings)]
        ((*entries_a, path_a), settings_a), ((*entries_b, path_b), settings_b) = sides if a_is_torch else sides[::-1]
        name = layer.torch[0] if len(layer.torch) == 1 else ""
        entries = tuple(entries_a), tuple(entries_b)
        matches.append(LayerMatch(layer.kind, name, path_a, path_b, settings_a, settings_b, *entries))
    return matches


def join_titles(a: str, b: str) -> str:
    """Return the name of a pair in reports."""
    return a if a == b else f"{a} | {b}"
