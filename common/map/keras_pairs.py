"""Pairs of layers of the same Keras model on the PyTorch and on the TensorFlow backend, whose layouts are the same."""

from collections.abc import Sequence
from dataclasses import replace

from common.map.sublayers import KerasTarget, LayerPair, Sublayer, TorchSources
from common.map.transformation import SourceParameter


def use_keras_layouts(
    torch_sublayers: Sequence[Sublayer], keras_sublayers: Sequence[Sublayer]
) -> tuple[list[Sublayer], list[Sublayer]]:
    """Return both models' sublayers so that equal roles match without a transformation.

    Both models are Keras models, so all targets are KerasTarget.

    Args:
        torch_sublayers: The sublayers on the PyTorch backend, of `split_keras_layers`.
        keras_sublayers: The sublayers on the TensorFlow backend, of `split_keras_layers`.
    """
    return (
        [
            replace(
                sublayer,
                variables={
                    role: TorchSources((SourceParameter(target.name),))
                    for role, target in sublayer.variables.items()
                    if isinstance(target, KerasTarget)
                },
                unflattened_shape=None,
                reshaped_shape=None,
            )
            for sublayer in torch_sublayers
        ],
        [
            replace(
                sublayer,
                variables={
                    role: KerasTarget(target.name)
                    for role, target in sublayer.variables.items()
                    if isinstance(target, KerasTarget)
                },
                unflattened_shape=None,
                reshaped_shape=None,
            )
            for sublayer in keras_sublayers
        ],
    )


def pair_by_path(torch_sublayers: Sequence[Sublayer], keras_sublayers: Sequence[Sublayer]) -> list[LayerPair]:
    """Pair the sublayers of equal kinds and sizes whose variables have the same paths."""
    by_variables = {tuple(sublayer.variable_names): sublayer for sublayer in keras_sublayers}
    pairs = [(sublayer, by_variables.get(tuple(sublayer.variable_names))) for sublayer in torch_sublayers]
    return [LayerPair(a, b) for a, b in pairs if b is not None and a.signature == b.signature]
