"""Pairs of variables and of layers of two recorded models.

A is the reference record of a diagnosis, and B the record that is compared with it. Models of one framework are paired
by names, or otherwise in the order of their variables. Models of two frameworks are paired as common.map pairs them;
PyTorch's arrays are then converted to Keras's layout. The layout in which both sides are compared is the common layout.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.layer_vocabulary import find_common_kind, translate_attributes
from common.diagnose.recorded.passive_copies import remove_passive_copies
from common.diagnose.recorded.recorded_model import RecordedModel, describe_recorded_model
from common.diagnose.recorded.variable_match import (
    VariableMatch,
    are_other_statistics,
    join_titles,
    match_frameworks,
    read_sum,
    write_by_name,
)
from common.errors import UserError
from common.map.assumed_layout import USUAL_LAYOUT, AssumedLayout, list_layouts
from common.map.comparable_layers import list_comparable_layers
from common.map.keras_layers import split_keras_layers
from common.map.map_file import read_map
from common.map.pair_variables import ParameterMap, pair_variables
from common.map.torch_layers import split_torch_layers

NUMBER = re.compile(r"_\d+(?=[/#]|$)")  # the number with which Keras ends the name of a layer, such as conv2d_1


@dataclass(frozen=True)
class ModelPairs:
    """Pairs of variables and layers, and the names of A's and B's variables that have no counterpart."""

    variables: list[VariableMatch]
    layers: list[LayerMatch]
    unpaired_a: list[str]
    unpaired_b: list[str]


def list_recorded_layouts(a: RecordedModel, b: RecordedModel) -> list[AssumedLayout]:
    """Return the layouts that the parameters of a PyTorch model may have beside a Keras model, the usual one first."""
    if a.is_torch == b.is_torch:
        return [USUAL_LAYOUT]
    torch, keras = map(describe_recorded_model, (a, b) if a.is_torch else (b, a))
    return list_layouts(split_torch_layers(torch), split_keras_layers(keras))


def pair_recorded_models(
    a: RecordedModel, b: RecordedModel, map_file: Path | None, layout: AssumedLayout = USUAL_LAYOUT
) -> ModelPairs:
    """Pair the variables and layers of two models. Raise UserError for a map file that does not fit."""
    if a.is_torch == b.is_torch:
        if map_file is not None:
            raise UserError(f"map={map_file}: both records are of one framework; remove it")
        variables = _match_by_name(a, b)
        layers = _pair_layers_by_path(a, b)
    else:
        a, b = remove_passive_copies(a, b), remove_passive_copies(b, a)
        torch, keras = (a, b) if a.is_torch else (b, a)
        descriptions = describe_recorded_model(torch), describe_recorded_model(keras)
        transformations = read_map(map_file, *descriptions) if map_file else {}
        parameter_map = pair_variables(*descriptions, transformations, layout)
        variables = [
            match
            for pair in parameter_map.variable_pairs
            for match in [match_frameworks(pair, a.is_torch)]
            if not are_other_statistics(match)
        ]
        layers = _match_layers(parameter_map, a.is_torch)
    paired_a = {name for match in variables for name in match.names_a}
    paired_b = {name for match in variables for name in match.names_b}
    return ModelPairs(
        variables,
        layers,
        _list_unpaired(a, b, paired_a),
        _list_unpaired(b, a, paired_b),
    )


def _list_unpaired(model: RecordedModel, other: RecordedModel, paired: set[str]) -> list[str]:
    """Return the names of a model's variables that have no counterpart.

    Integers, such as BatchNorm's number of batches, do not count if the other framework need not have them.
    """
    return [
        name
        for name, facts in model.facts["variables"].items()
        if name not in paired and (model.is_torch == other.is_torch or "float" in facts["dtype"])
    ]


def _pair_names(names_a: list[str], names_b: list[str]) -> list[tuple[str, str]]:
    """Pair equal names. If no name is equal, or if all differ only in Keras's numbers, pair the names in their order.

    Keras numbers the layers of a process, so that conv2d_1 may be the second layer of A and the first one of B.
    """
    pairs = [(name, name) for name in names_a if name in names_b]
    plain_a, plain_b = ([NUMBER.sub("", name) for name in names] for names in (names_a, names_b))
    is_renumbered = plain_a == plain_b and names_a != names_b
    if is_renumbered or (not pairs and len(names_a) == len(names_b)):
        pairs = list(zip(names_a, names_b, strict=True))
    return pairs


def _match_by_name(a: RecordedModel, b: RecordedModel) -> list[VariableMatch]:
    """Pair the variables of two models of one framework.

    One side may tie variables that the other side trains separately. The tied variable is then paired with all of the
    separate ones, because its gradient is the sum of their gradients.
    """
    names_a, names_b = [*a.facts["variables"]], [*b.facts["variables"]]
    untied_a, untied_b = _list_untied(names_a, b), _list_untied(names_b, a)
    matches = []
    for name_a, name_b in _pair_names(names_a, names_b):
        all_a, all_b = (name_a, *untied_a.get(name_b, ())), (name_b, *untied_b.get(name_a, ()))
        title, write_b = join_titles(name_a, name_b), write_by_name(all_b)
        matches.append(VariableMatch(title, all_a, all_b, read_sum(all_a), read_sum(all_b), write_b))
    return matches


def _list_untied(names: list[str], other: RecordedModel) -> dict[str, list[str]]:
    """Return the names of a side's variables that the other side has tied, by the name that the other side keeps."""
    others = other.facts["variables"]
    untied: dict[str, list[str]] = {}
    for group in other.facts["tied"]:
        kept_name = next((name for name in group if name in others), None)
        if kept_name is not None:
            untied[kept_name] = [name for name in group if name in names and name not in others]
    return untied


def _pair_layers_by_path(a: RecordedModel, b: RecordedModel) -> list[LayerMatch]:
    """Pair the layers of two models of one framework: by path, or in their order if only the paths differ."""
    layers_a, layers_b = a.facts["layers"], b.facts["layers"]
    paths_a, paths_b = ({layer["path"]: layer for layer in layers} for layers in (layers_a, layers_b))
    kinds_a, kinds_b = ([find_common_kind(layer["kind"]) for layer in layers] for layers in (layers_a, layers_b))
    if paths_a.keys() != paths_b.keys() and kinds_a == kinds_b:
        pairs = list(zip(layers_a, layers_b, strict=True))  # Keras names a layer in another way before it is built
    else:
        pairs = [(paths_a[path], paths_b[other]) for path, other in _pair_names([*paths_a], [*paths_b])]
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
    matches, channels_first = [], (a_is_torch, not a_is_torch)
    for layer in list_comparable_layers(parameter_map.layer_pairs):
        sides = [(layer.torch, layer.torch_settings), (layer.keras, layer.keras_settings)]
        ((*entries_a, path_a), settings_a), ((*entries_b, path_b), settings_b) = sides if a_is_torch else sides[::-1]
        name = layer.torch[0] if len(layer.torch) == 1 else ""
        entries = tuple(entries_a), tuple(entries_b)
        matches.append(LayerMatch(layer.kind, name, path_a, path_b, settings_a, settings_b, *entries, channels_first))
    return matches
