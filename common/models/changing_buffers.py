"""Check of the buffers of a user's model that forward passes in training mode change.

A buffer is here a buffer of PyTorch or a variable of Keras. If its new value does not depend on the examples, every
replica computes the same value. Otherwise model.buffers says how to combine the values of the replicas.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.errors import UserError
from common.map.description import ModelDescription
from common.map.pair_models import PairedModels

# The strategies that keep moving statistics of BatchNorm and other buffers that forward passes change.
BUFFER_STRATEGIES = ("single", "ddp", "dp", "allreduce", "zero", "fsdp", "mirrored", "multiworker")


def merge_buffers(
    settings: CustomModelSettings,
    weights: Mapping[str, np.ndarray],
    models: PairedModels | None,
    descriptions: Mapping[str, ModelDescription],
) -> dict[str, bool]:
    """Return, for each buffer that changes, whether it depends on the examples, by its name in checkpoints.

    Args:
        settings: The settings of the model.
        weights: The initial weights, which contain the buffers.
        models: Both models with their parameter map; None if there is only one model.
        descriptions: The descriptions of the same models.

    Raises:
        UserError: A buffer has no counterpart, or the replicas should take the mean of a buffer of integers.
    """
    pairs = models.parameter_map.variable_pairs if models else []
    sources = {pair.keras: [source.name for source in pair.transformation.sources] for pair in pairs}
    merged: dict[str, bool] = {}
    for side, description in descriptions.items():
        for variable, depends_on_examples in description.buffers.items():
            if models and variable not in (sources if side == "tf" else models.parameter_map.torch_names):
                raise UserError(
                    f"model.{side}: forward passes change {variable}, which has no counterpart; pair it in model.map"
                )
            for name in sources.get(variable, [variable]):
                merged[name] = merged.get(name, False) or depends_on_examples
    for name, depends_on_examples in merged.items():
        if settings.buffers == "average" and depends_on_examples and weights[name].dtype.kind != "f":
            raise UserError(
                f"model.buffers=average: {name} has no mean, because its type is {weights[name].dtype}; make it a "
                "floating-point buffer, or use strategy=single with model.buffers=equal"
            )
    return merged


def check_buffers(config: Config, statistics: Sequence[str], buffers: Mapping[str, bool]) -> None:
    """Raise UserError if the strategy cannot keep the buffers, or would change them differently from strategy=single.

    Args:
        config: The config of the run.
        statistics: The names of BatchNorm's moving statistics.
        buffers: The other buffers that forward passes change, and whether their new values depend on the examples.
    """
    assert isinstance(config.model, CustomModelSettings)
    strategy = config.strategy
    if (statistics or buffers) and strategy.kind not in BUFFER_STRATEGIES:
        kept = (
            "moving statistics of BatchNorm" if statistics else f"buffers that forward passes change ({min(buffers)})"
        )
        raise UserError(
            f"strategy={strategy.kind}: keeps no {kept}, which this model has; choose one of "
            f"{', '.join(BUFFER_STRATEGIES)}"
        )
    if buffers and config.micro_batches > 1:
        raise UserError(
            f"train.micro_batches={config.micro_batches}: every micro-batch would change {min(buffers)} once more than "
            "with strategy=single, because forward passes change it; set it to 1"
        )
    dependent = sorted(name for name, depends_on_examples in buffers.items() if depends_on_examples)
    if dependent and strategy.kind != "single" and strategy.replicas != 1 and config.model.buffers == "equal":
        raise UserError(
            f"model.buffers=equal: forward passes change {dependent[0]} depending on the examples, so several replicas "
            "would change it differently from one; use strategy=single, or model.buffers=average, which continues with "
            "the mean over the replicas after every step"
        )


def round_to_float32(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights with their floating-point numbers as float32. Buffers of integers stay as they are."""
    return {
        name: np.asarray(array, np.float32 if array.dtype.kind == "f" else array.dtype)
        for name, array in weights.items()
    }
