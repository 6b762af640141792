"""Pairing of a PyTorch and a Keras model, and the proof that they compute the same.

A factory is a user's function that builds a model. Each model lives in a process of its framework, its side.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.map.assumed_layout import USUAL_LAYOUT, list_layouts
from common.map.description import Arrays, ModelDescription, RecordedCall
from common.map.input_specs import InputSpec, draw_inputs, note_equal_values
from common.map.keras_backend import check_keras_backend
from common.map.keras_layers import split_keras_layers
from common.map.map_file import read_map
from common.map.output_pairs import largest_difference, pair_outputs
from common.map.pair_variables import ParameterMap, Transformations, pair_variables
from common.map.proof import OUTPUT_TOLERANCE, Computation, Proof, map_weights, prove_models
from common.map.side import Side, receive_all
from common.map.torch_layers import split_torch_layers
from common.map.unused_variables import draw_constants, leave_out


@dataclass(frozen=True)
class PairingRequest:
    """The factories of two models, and the inputs on which they are compared.

    Attributes:
        torch: PyTorch's factory as module:function.
        tf: Keras's factory as module:function.
        inputs: The inputs by name.
        arguments: The keyword arguments of both factories.
        map: The map file, whose pairs of variables take precedence; None: no map file.
        seed: The seed of the weights, of the inputs, and of the other random numbers of the proof.
        arrays: The values of the inputs, with channels last; None: random values.
        prove: Whether to prove that the models compute the same.
        allow_unpaired: Whether to compute models that have variables without a counterpart.
        is_one_factory: Whether both sides use the factory of `model.keras`, which builds a Keras model on both.
    """

    torch: str
    tf: str
    inputs: Mapping[str, InputSpec]
    arguments: Mapping[str, object] = field(default_factory=dict)
    map: Path | None = None
    seed: int = 0
    arrays: Mapping[str, np.ndarray] | None = None
    prove: bool = True
    allow_unpaired: bool = False
    is_one_factory: bool = False


@dataclass(frozen=True)
class PairedModels:
    """Two models, their parameter map and its proof.

    Attributes:
        torch_description: The description of PyTorch's model.
        keras_description: The description of Keras's model.
        parameter_map: The parameter map.
        initial_weights: The weights of PyTorch's model, as its factory draws them.
        proof: The proof; None if a variable has no counterpart, or if the request asks for no proof.
        dropout_inputs: The arrays that the dropout layers of PyTorch and of Keras receive, by path; empty if a variable
            has no counterpart, unless the request allows that.
        agree_without_unmatched: Whether both models return the same outputs if the variables without a counterpart are
            0. False if there are no such variables, or if both models have some.
    """

    torch_description: ModelDescription
    keras_description: ModelDescription
    parameter_map: ParameterMap
    initial_weights: Arrays
    proof: Proof | None
    dropout_inputs: tuple[Arrays, Arrays] = field(default_factory=lambda: ({}, {}))
    agree_without_unmatched: bool = False

    @property
    def proven(self) -> bool:
        """Return whether the models compute the same."""
        return self.proof is not None and not self.proof.errors


def describe_models(sides: Mapping[str, Side], request: PairingRequest) -> dict[str, ModelDescription]:
    """Build and describe the models of the request, one on each side. Raise UserError if one fails.

    Args:
        sides: The processes by framework, "torch" or "tf".
        request: The request.
    """
    arrays = draw_inputs(request.inputs, request.seed) if request.arrays is None else request.arrays
    for name, side in sides.items():
        factory = request.torch if name == "torch" else request.tf
        side.send(
            "build",
            key="model.keras" if request.is_one_factory else f"model.{name}",
            factory=factory,
            arguments=request.arguments,
            inputs=request.inputs,
            arrays=arrays,
            seed=request.seed,
        )
    receive_all(*sides.values())
    for side in sides.values():
        side.send("describe")
    descriptions = dict(zip(sides, receive_all(*sides.values()), strict=True))
    if request.is_one_factory and not descriptions["torch"].is_keras:
        raise UserError(f"model.keras={request.torch}: returned a torch.nn.Module, not a keras.Model; use model.torch")
    check_keras_backend(descriptions)
    return descriptions


def pair_models(torch_side: Side, keras_side: Side, request: PairingRequest) -> PairedModels:
    """Build both models, pair their variables, and prove that they compute the same if all variables are paired.

    Raises:
        UserError: A factory, a model or the map file is wrong. Differences between the models are no errors.
    """
    torch_description, keras_description = describe_models({"torch": torch_side, "tf": keras_side}, request).values()
    transformations = read_map(request.map, torch_description, keras_description) if request.map else {}
    initial_weights = torch_side.call("weights")
    maps = _list_maps(torch_description, keras_description, transformations)
    if not maps[0].is_complete:
        torch_side.send("find_unused", description=torch_description, seed=request.seed)
        keras_side.send("find_unused", description=keras_description, seed=request.seed)
        torch_unused, keras_unused = receive_all(torch_side, keras_side)
        torch_unused -= _list_sources(transformations)
        torch_description = leave_out(torch_description, torch_unused, maps[0].unmatched_torch)
        keras_unused -= transformations.keys()
        keras_description = leave_out(keras_description, keras_unused, maps[0].unmatched_keras)
        maps = _list_maps(torch_description, keras_description, transformations)
    parameter_map = maps[0]
    if len(maps) > 1:
        weights = draw_constants(initial_weights, torch_description, request.seed)
        parameter_map = _choose_map(maps, torch_side, keras_side, (torch_description, keras_description), weights)
    models = PairedModels(torch_description, keras_description, parameter_map, initial_weights, None)
    if not parameter_map.is_complete and not request.allow_unpaired:
        return replace(models, agree_without_unmatched=_agree_without_unmatched(torch_side, keras_side, models))
    has_dropout = bool(torch_description.dropouts or keras_description.dropouts)
    if request.prove and parameter_map.is_complete:
        described_map = torch_description, keras_description, parameter_map
        proof = prove_models(torch_side, keras_side, *described_map, initial_weights, request.seed)
        if request.arrays is None:
            proof.notes += note_equal_values(request.inputs, draw_inputs(request.inputs, request.seed))
        models = replace(models, proof=proof)
    elif has_dropout:
        weights = map_weights(parameter_map, initial_weights, keras_description)
        Computation(torch_side, keras_side, initial_weights, weights).run(training=False)
    if not has_dropout:
        return models
    return replace(
        models,
        dropout_inputs=(
            _read_inputs(torch_side, torch_description.dropouts),
            _read_inputs(keras_side, keras_description.dropouts),
        ),
    )


def _list_sources(transformations: Transformations) -> set[str]:
    return {source.name for transformation in transformations.values() for source in transformation.sources}


def _list_maps(
    torch_description: ModelDescription, keras_description: ModelDescription, transformations: Transformations
) -> list[ParameterMap]:
    """Return the parameter map of the usual layout, and the complete maps of the other layouts."""
    layouts = [USUAL_LAYOUT]
    if not torch_description.is_keras:
        layouts = list_layouts(split_torch_layers(torch_description), split_keras_layers(keras_description))
    maps = [pair_variables(torch_description, keras_description, transformations, layout) for layout in layouts]
    return [maps[0], *(parameter_map for parameter_map in maps[1:] if parameter_map.is_complete)]


def _choose_map(
    maps: Sequence[ParameterMap],
    torch_side: Side,
    keras_side: Side,
    descriptions: tuple[ModelDescription, ModelDescription],
    weights: Arrays,
) -> ParameterMap:
    """Return the first map that makes the outputs of both models equal, or else the map with the most similar outputs.

    Args:
        maps: The maps to try.
        torch_side: The process of PyTorch's model.
        keras_side: The process of Keras's model.
        descriptions: The descriptions of both models.
        weights: PyTorch's weights.
    """
    torch_description, keras_description = descriptions
    differences: list[float] = []
    for parameter_map in maps:
        keras_weights = map_weights(parameter_map, weights, keras_description)
        computation = Computation(torch_side, keras_side, weights, keras_weights)
        differences.append(_measure_outputs(computation, torch_description.has_channels))
        if differences[-1] <= OUTPUT_TOLERANCE:
            break
    return maps[differences.index(min(differences))]


def _measure_outputs(computation: Computation, has_channels: bool) -> float:
    """Compute a pass of both models in evaluation mode. Return the largest relative difference of the outputs."""
    passes = computation.run(training=False)
    pairs, error = pair_outputs(passes[0].outputs, passes[1].outputs, has_channels)
    difference = math.inf if error else largest_difference(pairs, *passes)
    return math.inf if math.isnan(difference) else difference


def _agree_without_unmatched(torch_side: Side, keras_side: Side, models: PairedModels) -> bool:
    """Set the variables that one model lacks to 0, compute a pass of both models, and compare the outputs."""
    parameter_map, variables = models.parameter_map, models.keras_description.variables
    if parameter_map.unmatched_torch and parameter_map.unmatched_keras:
        return False
    zeros = {name: np.zeros_like(models.initial_weights[name]) for name in parameter_map.unmatched_torch}
    keras_weights = {name: np.zeros(variables[name].shape) for name in parameter_map.unmatched_keras}
    weights = models.initial_weights | zeros
    keras_weights |= map_weights(parameter_map, weights, models.keras_description)
    computation = Computation(torch_side, keras_side, weights, keras_weights)
    return _measure_outputs(computation, models.torch_description.has_channels) <= OUTPUT_TOLERANCE


def _read_inputs(side: Side, paths: Iterable[str]) -> Arrays:
    """Return the arrays that the layers at these paths received in the last pass of a side."""
    calls: Mapping[str, RecordedCall] = side.call("calls", paths=list(paths))
    return {path: call.received for path, call in calls.items() if call.received is not None}
