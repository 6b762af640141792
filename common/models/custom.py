"""A user's own model: its factory draws the weights, and where there are two factories they are proven equal."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.config.strategies import PACKAGES
from common.data.arrays.array_cache import ArrayCache
from common.data.atomic_directory import compute_checksum
from common.data.identity import identify_file
from common.errors import UserError
from common.map.description import Description
from common.map.dropouts import DropoutPair, pair_dropouts
from common.map.inputs import Input
from common.map.map_file import unmatched_lines
from common.map.match import Job, Match, describe, match
from common.map.side import Side
from common.models.outputs import check_output, select_output
from common.models.user_weights import read_weights

FORMAT = 2  # of what `build` returns
EXAMPLES = 4  # that the models are computed on
VERSIONS = ("torch", "tensorflow", "keras", "keras-hub", "transformers")
AVERAGED = ("single", "ddp", "dp", "allreduce", "mirrored", "multiworker")  # strategies that keep moving statistics


@dataclass(frozen=True)
class UserModel:
    """weights: float32, by the names of PyTorch's parameters and buffers, or of Keras's variables without those.

    hf_config: what both sides need to build it. files: the user's code.
    """

    weights: dict[str, np.ndarray]
    hf_config: dict[str, Any]
    files: list[str] = field(default_factory=list)


def identity(config: Config, cache: ArrayCache) -> dict[str, Any]:
    """What decides the initial weights, but for the user's code."""
    assert isinstance(config.model, CustomModelSettings)
    named = {name: getattr(config.model, name) for name in ("map", "checkpoint")}
    paths = {name: identify_file(_existing(f"model.{name}", path)) for name, path in named.items() if path is not None}
    return {
        "custom_format": FORMAT,
        "versions": {name: version(name) for name in VERSIONS},
        "files": paths,
        "inputs": repr(cache.inputs),
        "classes": cache.classes,
        "task": config.task.kind,
        "channels": list(getattr(config.data, "channels", ())),
    }


def files_before(index: Path) -> list[str] | None:
    """The user's files when a model was last built; None where it never was, or where one of them is gone."""
    try:
        files: list[str] = json.loads(index.read_text())
    except (OSError, ValueError):
        return None
    return files if all(Path(each).is_file() for each in files) else None


def remember_files(index: Path, files: list[str]) -> None:
    """For `files_before`."""
    index.parent.mkdir(parents=True, exist_ok=True)
    partial = index.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(files))
    partial.replace(index)


def checksums(files: list[str]) -> dict[str, str]:
    """Of the user's files."""
    return {each: compute_checksum(Path(each)) for each in files}


def check_strategy(config: Config, hf_config: Mapping[str, Any]) -> None:
    """Raise UserError where the strategy cannot train the model."""
    if hf_config["statistics"] and config.strategy.kind not in AVERAGED:
        raise UserError(
            f"strategy={config.strategy.kind}: keeps no moving statistics of BatchNorm, which this model has; choose "
            f"one of {', '.join(AVERAGED)}"
        )


def build(config: Config, cache: ArrayCache) -> UserModel:
    """Build the model in a process of each framework that has one. Raises UserError where both are not the same."""
    settings = config.model
    assert isinstance(settings, CustomModelSettings)
    factories = {side: getattr(settings, side) for side in PACKAGES if getattr(settings, side) is not None}
    ids = np.arange(min(EXAMPLES, len(cache.train)))
    gathered = cache.train.gather(ids, ids)
    inputs, arrays = _inputs(config, gathered)
    job = Job(
        factories.get("torch", ""),
        factories.get("tf", ""),
        inputs,
        settings.arguments,
        Path(settings.map) if settings.map else None,
        config.train.seed % 2**32,
        arrays,
    )
    with ExitStack() as stack:
        sides = {side: stack.enter_context(Side(PACKAGES[side])) for side in factories}
        found = match(sides["torch"], sides["tf"], job) if len(sides) == 2 else None
        if found is not None:
            _check_match(found, settings.prove)
            descriptions = {"torch": found.torch, "tf": found.keras}
        else:
            descriptions = {side: describe({side: process}, job)[side] for side, process in sides.items()}
        outputs = {}
        for side, each in descriptions.items():
            outputs[side] = select_output(f"model.{side}={factories[side]}", each.outputs)
            shape = each.outputs[outputs[side]]
            check_output(f"model.{side}={factories[side]}", config, cache, shape, gathered["labels"])
        weights = read_weights(settings, sides, descriptions, found)
    maps = {each.keras: str(each.transformation) for each in found.pairing.pairs} if found else None
    hf_config = {
        "model_type": "custom",
        "factories": factories,
        "arguments": dict(settings.arguments),
        "inputs": {name: [each.dtype, each.shape[1:]] for name, each in inputs.items()},
        "channels": [name for name, each in inputs.items() if each.channels],
        "outputs": outputs,
        "map": maps,
        "sync_batch_norm": settings.sync_batch_norm,
        "statistics": sorted({name for each in descriptions.values() for name in each.statistics}),
        "frozen": _frozen(found, descriptions),
        "dropouts": _dropouts(config, found, descriptions),
        "layers": _layers(found),
        "shapes": {name: list(array.shape) for name, array in weights.items()},
    }
    files = sorted({file for each in descriptions.values() for file in each.files})
    return UserModel({name: array.astype(np.float32) for name, array in weights.items()}, hf_config, files)


def get_parameter_shapes(hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of parameters and buffers by name."""
    return {name: tuple(shape) for name, shape in hf_config["shapes"].items()}


def _existing(key: str, path: str) -> Path:
    if not Path(path).is_file():
        raise UserError(f"{key}={path}: no such file; correct it")
    return Path(path)


def _inputs(config: Config, gathered: Mapping[str, np.ndarray]) -> tuple[dict[str, Input], dict[str, np.ndarray]]:
    """What the models are computed on: the integers of the first examples, and random numbers of floats."""
    stream = np.random.default_rng(config.train.seed)
    arrays = {name: array for name, array in gathered.items() if name != "labels"}
    drawn = {
        name: stream.standard_normal(array.shape) if array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }
    channels = getattr(config.data, "channels", ())
    described = {name: Input(str(array.dtype), array.shape, name in channels, -1, 0) for name, array in arrays.items()}
    return described, drawn


def _check_match(found: Match, prove: bool) -> None:
    """Raise UserError unless the models are matched and, with `prove`, proven to be the same."""
    advice = "python -m common.map shows all of it, and writes a map file for model.map"
    if found.proof is None:
        lines = unmatched_lines(found.pairing, found.torch, found.keras)
        raise UserError(f"model.torch, model.tf: {lines[0]} ({len(lines)} in all); {advice}")
    if prove and found.proof.errors:
        raise UserError(f"model.torch, model.tf: are not the same: {found.proof.errors[0]}; {advice}")


def _frozen(found: Match | None, descriptions: Mapping[str, Description]) -> list[str]:
    """What PyTorch does not train: what the model says, the second of two biases that are one in Keras, the unused."""
    if "torch" not in descriptions:
        return []
    pairs = found.pairing.pairs if found else []
    second = [each.transformation.sources[1].name for each in pairs if each.transformation.joined == "+"]
    ours = descriptions["torch"]
    fixed = [name for name, each in ours.variables.items() if not (each.trainable or each.constant)]
    return sorted({*second, *ours.unused, *fixed} - {*ours.statistics})


def _layers(found: Match | None) -> list[dict[str, Any]]:
    """The layers that are paired, in the order of execution, for common.diagnose."""
    return [
        {
            "kind": ours.kind,
            "torch": ours.output,
            "tf": theirs.output,
            "settings": {"torch": _plain(ours.settings), "tf": _plain(theirs.settings)},
        }
        for ours, theirs in (found.pairing.parts if found else [])
        if ours.output and theirs.output
    ]


def _plain(settings: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value for name, value in settings.items() if isinstance(value, bool | int | float | str | list | tuple)
    }


def _dropouts(config: Config, found: Match | None, descriptions: Mapping[str, Description]) -> list[Any] | None:
    """How dropout is aligned: a DropoutPair of each layer as a dict; None where it is native. Raises UserError."""
    if not config.model.has_aligned_dropout:
        return None
    advice = "make them the same, or set model.dropout_semantics=native"
    for side, each in descriptions.items():
        if each.noise:
            raise UserError(
                f"model.{side}: the dropout of {each.noise[0]} cannot be aligned; write a dropout layer of its own, or "
                "set model.dropout_semantics=native"
            )
    if found is None:
        names = [layer.name for each in descriptions.values() for layer in each.dropouts.values()]
        return [asdict(DropoutPair(name, name, None)) for name in names]
    assert found.proof is not None
    try:
        return [asdict(each) for each in pair_dropouts(found.torch, found.keras, *found.proof.dropped)]
    except UserError as error:
        raise UserError(f"model.torch, model.tf: {error}; {advice}") from error
