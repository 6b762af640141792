"""Dropout and noise of a user's models: whether training can align it, and the pairs of layers."""

from collections.abc import Mapping
from dataclasses import asdict

from common.errors import UserError
from common.map.description import ModelDescription
from common.map.dropout_pairs import DropoutPair, pair_dropouts
from common.map.pair_models import PairedModels


def check_noise(descriptions: Mapping[str, ModelDescription], aligned: bool) -> None:
    """Raise UserError if random numbers of a layer cannot be aligned or, if not aligned, would be repeated.

    Args:
        descriptions: The descriptions of the models, by side.
        aligned: Whether both frameworks draw the same numbers.
    """
    for side, description in descriptions.items():
        if side == "torch" and description.is_keras and description.dropouts and not aligned:
            raise UserError(
                "model.dropout_semantics=native: a Keras model on PyTorch would repeat its masks in all replicas and "
                "after a resumption; set it to aligned"
            )
        if description.is_keras_two and description.unaligned_noise:
            raise UserError(
                f"model.{side}: {description.unaligned_noise[0]} draws random numbers that cannot be aligned, and "
                "Keras 2 would draw other ones after a resumption; make it a dropout or noise layer of its own "
                "(docs/custom_models.md)"
            )
        if description.is_keras_two and description.dropouts and not aligned:
            raise UserError(
                "model.dropout_semantics=native: checkpoints do not have the state of Keras 2's random generators, so "
                "that a resumed run would draw other numbers; set it to aligned"
            )
        if description.unaligned_noise and aligned:
            raise UserError(
                f"model.{side}: {description.unaligned_noise[0]} draws random numbers that cannot be aligned; make "
                "it a dropout or noise layer of its own (docs/custom_models.md), or set model.dropout_semantics=native"
            )


def pair_noises(models: PairedModels | None, descriptions: Mapping[str, ModelDescription]) -> list[dict[str, object]]:
    """Return the fields of a DropoutPair for each dropout or noise layer. Raise UserError if the models differ."""
    if models is None:
        layers = [layer for description in descriptions.values() for layer in description.dropouts.values()]
        return [asdict(DropoutPair(layer.name, layer.name, layer.noise, None)) for layer in layers]
    try:
        return [
            asdict(pair)
            for pair in pair_dropouts(
                models.torch_description,
                models.keras_description,
                *models.dropout_inputs,
                can_differ=models.proof is None,
            )
        ]
    except UserError as error:
        advice = "make them the same, or set model.dropout_semantics=native"
        raise UserError(f"model.torch, model.tf: {error}; {advice}") from error
