"""The comparison of a pair's layers one by one, as common.diagnose does it, without a training run."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from common.diagnose.findings import EQUAL, Stage
from common.diagnose.layer_match import build_match
from common.diagnose.layout_conversion import convert_calls, perturb_calls, select_replacements
from common.diagnose.model_observations import ModelObservations
from common.diagnose.observation import Observation, measure_perturbation
from common.diagnose.rounding import MACHINE_EPSILON, perturb
from common.diagnose.stages.activations import compare_layers
from common.map.description import ComputedPass, ModelDescription
from common.map.input_specs import draw_inputs
from common.map.pair_models import PairedModels, PairingRequest
from common.map.proof import draw_constants, map_weights
from common.map.side import Side
from common.models.paired_layers import list_paired_layers
from common.models.unpaired_variables import list_unpaired


def check_layers_alone(sides: Mapping[str, Side], request: PairingRequest, models: PairedModels) -> None:
    """Check that the layers of a pair are equal one by one, both ways. The sides hold the models of the pair."""
    for a, b in (("torch", "tf"), ("tf", "torch")):
        stage = compare_layers_alone(sides, request, models, a, b)
        assert (stage.verdict, stage.causes) == (EQUAL, []), [check for check in stage.checks if check.differs]


def compare_layers_alone(
    sides: Mapping[str, Side], request: PairingRequest, models: PairedModels, a: str = "torch", b: str = "tf"
) -> Stage:
    """Compare side a's layers with side b's, in evaluation mode. The sides hold the models of the pair."""
    unpaired = list_unpaired(models)
    descriptions = {"torch": models.torch_description, "tf": models.keras_description}
    matches = [build_match(layer, a, b) for layer in list_paired_layers(models)]
    weights = draw_constants(models.initial_weights, models.torch_description, request.seed)
    epsilon = MACHINE_EPSILON["float64"]
    moved = {name: perturb(array, epsilon, seed) for seed, (name, array) in enumerate(weights.items())}

    def observe(side: str, arrays: Mapping[str, np.ndarray], **replacements: object) -> Observation:
        side_weights = (
            arrays if side == "torch" else map_weights(models.parameter_map, dict(arrays), models.keras_description)
        )
        computed = sides[side].call("compute", weights=side_weights, training=False, **replacements)
        return _to_observation(replace(computed, calls=sides[side].call("calls")), descriptions[side])

    observed_a, observed_b = observe(a, weights), observe(b, weights)
    replacements = select_replacements(matches, convert_calls(matches, observed_a, observed_b), observed_b)
    return compare_layers(
        "activations",
        ModelObservations(
            a=observed_a,
            a_perturbed=measure_perturbation(observed_a, observe(a, moved)),
            a_isolated=measure_perturbation(
                observed_a, observe(a, moved, replacements=perturb_calls(matches, observed_a, seed=1))
            ),
            b=observed_b,
            b_isolated=observe(b, weights, replacements=replacements),
            layers=matches,
            unpaired_a=[layer["path"] for layer in unpaired.get(a, [])],
            unpaired_b=[layer["path"] for layer in unpaired.get(b, [])],
            batch=draw_inputs(request.inputs, request.seed) if request.arrays is None else request.arrays,
            weights=weights,
        ),
    )


def _to_observation(computed: ComputedPass, description: ModelDescription) -> Observation:
    shapes = {layer.path: layer.unflattened_shape for layer in description.layers if layer.unflattened_shape}
    outputs = [array for array in computed.outputs.values() if array.dtype.kind == "f"]
    return Observation(outputs, [], computed.calls, shapes, {})
