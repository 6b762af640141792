"""A model of the user, which a factory of the user's code builds: one in PyTorch, one in Keras, or both.

A side is a framework, "torch" or "tf". A process of each side builds and describes its model, because this process
imports no framework. The factory draws the weights. If there are two factories, their models are proven equal.
"""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.config.strategies import PACKAGES
from common.config.tasks import CustomTaskSettings
from common.data.arrays.array_cache import ArrayCache
from common.data.batch_plan import has_equal_batches
from common.data.identity import identify_file
from common.errors import UserError
from common.map.description import ModelDescription
from common.map.input_specs import InputSpec
from common.map.mixed_examples import mixes_examples
from common.map.pair_models import PairedModels, PairingRequest, describe_models, pair_models
from common.map.proof import describe_unused
from common.map.side import Side
from common.map.unmatched import describe_unmatched
from common.models.batch_norm_checks import check_synchronization
from common.models.changing_buffers import check_buffers, merge_buffers, round_to_float32
from common.models.checkpoint_kinds import describe_checkpoint, find_tensorflow_prefix
from common.models.hf_config import HfConfig
from common.models.mixing import check_mixing, check_restricted
from common.models.paired_layers import list_paired_layers
from common.models.probability_outputs import find_probabilities, warn_of_probabilities
from common.models.summed_biases import check_sums, list_other_terms
from common.models.task_outputs import describe_outputs
from common.models.unpaired_variables import (
    has_only_missing_layers,
    list_unpaired,
    read_unpaired_weights,
    write_parameter_map,
)
from common.models.user_noise import check_noise, pair_noises
from common.models.user_weights import ACCEPTED_FILES, read_weights
from common.models.weight_files import WEIGHTS_FILE
from common.versions import find_versions

log = logging.getLogger("lockstep")

FORMAT = 17  # raise it whenever `build` returns something else, so that models of the old format are built again
PROOF_EXAMPLES = 4  # the number of examples that both models compute for the proof
LIBRARIES = ("torch", "tensorflow", "keras", "keras-hub", "transformers")  # a new version may draw other weights


@dataclass(frozen=True)
class UserModel:
    """A model that a user's factory built, ready to be written as an initial checkpoint."""

    weights: dict[str, np.ndarray]  # float32, by PyTorch's names, or by Keras's paths if there is no PyTorch model
    hf_config: HfConfig  # what both sides need to build the model
    files: list[str] = field(default_factory=list)  # the paths of the user's code


def identify(config: Config, cache: ArrayCache) -> dict[str, object]:
    """Return the values that the initial weights depend on, except for the user's code."""
    assert isinstance(config.model, CustomModelSettings)
    paths = {"map": config.model.map, "checkpoint": config.model.checkpoint}
    files = {name: identify_file(_find_file(f"model.{name}", path)) for name, path in paths.items() if path is not None}
    return {
        "custom_format": FORMAT,
        "versions": find_versions(LIBRARIES),
        "files": files,
        "inputs": repr(cache.inputs),
        "classes": cache.classes,
        "task": asdict(config.task)
        if isinstance(config.task, CustomTaskSettings) or config.task.names_labels
        else config.task.kind,
        "channels": list(getattr(config.data, "channels", ())),
        "fixed_batches": _has_fixed_batches(config, cache),
    }


def check_model(config: Config, hf_config: HfConfig) -> None:
    """Raise UserError if the strategy cannot train the model. Warn of outputs that do not fit their loss."""
    check_buffers(config, hf_config["statistics"], hf_config["buffers"])
    check_restricted(config.strategy.kind, hf_config)
    if config.strategy.kind != "single" and config.strategy.replicas != 1:
        check_mixing(hf_config)
    warn_of_probabilities(config, hf_config)


def build(config: Config, cache: ArrayCache) -> UserModel:
    """Build the model in a process of each side that has a factory. Raise UserError if the models differ.

    The result's config.json has, among others, `map`, the transformation of each Keras variable from PyTorch,
    `statistics`, the names of BatchNorm's moving means and variances, and `frozen`, the untrained parameters.
    """
    settings = config.model
    assert isinstance(settings, CustomModelSettings)
    factories = settings.factories
    ids = np.arange(min(PROOF_EXAMPLES, len(cache.train)))
    examples = cache.train.gather(ids, ids)
    request = make_request(config, cache, examples)
    with ExitStack() as stack:
        sides = {side: stack.enter_context(Side(PACKAGES[side], device=config.train.device)) for side in factories}
        models = pair_models(sides["torch"], sides["tf"], request) if len(sides) == 2 else None
        if models is not None:
            descriptions = {"torch": models.torch_description, "tf": models.keras_description}
        else:
            descriptions = {side: describe_models({side: process}, request)[side] for side, process in sides.items()}
        for side, description in descriptions.items():
            if description.unsupported:
                raise UserError(f"{settings.get_key(side)}={factories[side]}: {description.unsupported[0]}")
            check_synchronization(settings, side, description)
        check_noise(descriptions, settings.has_aligned_dropout)
        if models is not None:
            _check_match(models, settings.allow_unpaired)
        keys = {side: f"{settings.get_key(side)}={factory}" for side, factory in factories.items()}
        shapes = {side: description.outputs for side, description in descriptions.items()}
        outputs, mixing_losses = describe_outputs(keys, config, cache, shapes, examples["labels"]), []
        probabilities = find_probabilities(config.task, descriptions, outputs["outputs"])
        if isinstance(config.task, CustomTaskSettings):
            for side in descriptions:
                losses = sides[side].call(
                    "compute_losses", task=config.task, output=outputs["outputs"][side], labels=examples["labels"]
                )
                _check_losses(config.task, side, losses, len(ids))
                if any(mixes_examples(losses["float64"], losses[f"copies {i}"], i) for i in range(len(ids))):
                    mixing_losses.append(side)
        weights = read_weights(settings, sides, descriptions, models)
        buffers = merge_buffers(settings, weights, models, descriptions)
        if models is not None:
            weights |= read_unpaired_weights(sides["tf"], models)
        files = sorted({file for side in sides.values() for file in side.call("list_files")})
    hf_config = {
        "model_type": "custom",
        "factories": factories,
        "keras_on_torch": any(description.is_keras for description in descriptions.values()),
        "arguments": dict(settings.arguments),
        "inputs": {name: [spec.dtype, spec.shape[1:]] for name, spec in request.inputs.items()},
        "channels": [name for name, spec in request.inputs.items() if spec.channels],
        **outputs,
        "probabilities": probabilities,
        "map": write_parameter_map(models.parameter_map) if models else None,
        "unpaired": list_unpaired(models) if models else {},
        "sync_batch_norm": settings.sync_batch_norm,
        "norms_of_single_values": {
            side: description.norms_of_single_values
            for side, description in descriptions.items()
            if description.norms_of_single_values
        },
        "mixing_layers": {
            side: description.mixing_layer for side, description in descriptions.items() if description.mixing_layer
        },
        "mixed_gradients": {
            side: description.mixed_gradient for side, description in descriptions.items() if description.mixed_gradient
        },
        "mixing_losses": mixing_losses,
        "restricted": {
            side: description.restricted[0] for side, description in descriptions.items() if description.restricted
        },
        "statistics": sorted({name for description in descriptions.values() for name in description.statistics}),
        "buffers": buffers,
        "frozen": _list_frozen(models, descriptions),
        "dropouts": pair_noises(models, descriptions) if settings.has_aligned_dropout else None,
        "layers": list_paired_layers(models),
        "shapes": {name: list(array.shape) for name, array in weights.items()},
    }
    return UserModel(round_to_float32(weights), hf_config, files)


def make_request(config: Config, cache: ArrayCache, examples: Mapping[str, np.ndarray]) -> PairingRequest:
    """Return the request that makes the sides build the models and compute them on some examples."""
    settings = config.model
    assert isinstance(settings, CustomModelSettings)
    factories = settings.factories
    input_specs, input_arrays = _make_inputs(config, cache, examples)
    return PairingRequest(
        torch=factories.get("torch", ""),
        tf=factories.get("tf", ""),
        inputs=input_specs,
        arguments=settings.arguments,
        map=Path(settings.map) if settings.map else None,
        seed=config.train.seed % 2**32,
        arrays=input_arrays,
        prove=settings.prove,
        allow_unpaired=settings.allow_unpaired,
        is_one_factory=settings.keras is not None,
    )


def get_parameter_shapes(hf_config: HfConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of parameters and buffers by name."""
    return {name: tuple(shape) for name, shape in hf_config["shapes"].items()}


def list_transformations(hf_config: HfConfig) -> list[str] | None:
    """Return the transformation of each Keras variable from PyTorch's parameters; None if there is no Keras model."""
    if hf_config["map"] is not None:
        return [*hf_config["map"].values()]
    return [*hf_config["shapes"]] if "tf" in hf_config["factories"] else None  # the names are those of the variables


def _check_losses(task: CustomTaskSettings, side: str, losses: Mapping[str, np.ndarray], count: int) -> None:
    """Raise UserError unless the user's loss function returned one loss for each of `count` examples."""
    for computed in losses.values():
        if computed.shape != (count,):
            raise UserError(
                f"task.{side}={getattr(task, side)}: returns losses of shape {list(computed.shape)} for {count} "
                "examples; return one loss for each example, such as the mean over its labels"
            )


def _find_file(key: str, path: str) -> Path:
    if Path(path).is_file():
        return Path(path)
    if key == "model.checkpoint" and (prefix := find_tensorflow_prefix(Path(path))):
        return prefix.with_name(f"{prefix.name}.index")
    if key == "model.checkpoint" and (kind := describe_checkpoint(Path(path))):
        raise UserError(f"{key}={path}: {kind}; give {ACCEPTED_FILES}")
    if (weights := Path(path, WEIGHTS_FILE)).is_file():
        raise UserError(f"{key}={path}: is a directory; give its file {weights}")
    if Path(path).is_dir():
        raise UserError(f"{key}={path}: is a directory; give {ACCEPTED_FILES}")
    raise UserError(f"{key}={path}: no such file; correct it")


def _make_inputs(
    config: Config, cache: ArrayCache, examples: Mapping[str, np.ndarray]
) -> tuple[dict[str, InputSpec], dict[str, np.ndarray]]:
    """Return the specs and the values of the inputs that both models compute for the proof.

    Integers are taken from the examples. Floats are random, so that a value such as 0 hides no difference.
    """
    stream = np.random.default_rng(config.train.seed)
    arrays = {name: array for name, array in examples.items() if name != "labels"}
    drawn = {
        name: stream.standard_normal(array.shape) if array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }
    channels = getattr(config.data, "channels", ())
    open_batch = () if _has_fixed_batches(config, cache) else (0,)
    specs = {}
    for name, array in arrays.items():
        open_axes = (axis for axis, size in enumerate(cache.train.example_shapes[name], 1) if size is None)
        # An empty range for random integers, because the integers are taken from the examples.
        specs[name] = InputSpec(
            str(array.dtype), array.shape, name in channels, above=-1, below=0, open_axes=(*open_batch, *open_axes)
        )
    return specs, drawn


def _has_fixed_batches(config: Config, cache: ArrayCache) -> bool:
    """Check whether all batches of training and evaluations have the same size, known to a compiled step."""
    size, splits = config.train.global_batch_size, (cache.train, cache.validation)
    return config.strategy.kind != "parameter_server" and all(has_equal_batches(len(split), size) for split in splits)


def _check_match(models: PairedModels, allow_unpaired: bool) -> None:
    """Raise UserError if a variable lacks the counterpart that it needs, or if the proof shows that the models differ.

    Warn of variables that are left out.
    """
    advice = "python -m common.map shows all of it, and writes a map file for model.map"
    if not models.parameter_map.is_complete and not (allow_unpaired and has_only_missing_layers(models)):
        lines = describe_unmatched(models.parameter_map, models.torch_description, models.keras_description)
        raise UserError(f"model.torch, model.tf: {lines[0]} ({len(lines)} in all); {advice}")
    if models.proof is not None and models.proof.errors:
        raise UserError(f"model.torch, model.tf: are not the same: {models.proof.errors[0]}; {advice}")
    check_sums(models)
    for sentence in describe_unused(models.parameter_map, models.torch_description, models.keras_description):
        log.warning("%s", sentence)


def _list_frozen(models: PairedModels | None, descriptions: Mapping[str, ModelDescription]) -> list[str]:
    """Return the parameters of PyTorch's model that are not trained.

    These are parameters that the model declares as frozen, unused parameters, and, if one bias in Keras is the sum of
    several biases, all but the first of them.
    """
    if "torch" not in descriptions:
        return []
    other_terms = list_other_terms(models.parameter_map if models else None)
    description = descriptions["torch"]
    fixed = [
        name for name, variable in description.variables.items() if not (variable.trainable or variable.is_constant)
    ]
    return sorted({*other_terms, *description.unused, *fixed} - {*description.statistics})
