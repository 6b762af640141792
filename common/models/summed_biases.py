"""Biases of PyTorch whose sum is one bias in Keras. The first bias is trained; the others are 0 and frozen."""

from common.errors import UserError
from common.map.pair_models import PairedModels
from common.map.pair_variables import ParameterMap


def list_sums(parameter_map: ParameterMap | None) -> list[list[str]]:
    """Return the names of the terms of each sum, the first term first."""
    pairs = parameter_map.variable_pairs if parameter_map else ()
    sums = [pair.transformation for pair in pairs if pair.transformation.is_sum]
    return [[source.name for source in transformation.sources] for transformation in sums]


def list_other_terms(parameter_map: ParameterMap | None) -> set[str]:
    """Return the names of all terms of sums but the first ones."""
    return {name for _, *others in list_sums(parameter_map) for name in others}


def check_sums(models: PairedModels) -> None:
    """Raise UserError if only another term than the first is trained, or if a term has another role, too."""
    variables, other_terms = models.torch_description.variables, list_other_terms(models.parameter_map)
    for pair in models.parameter_map.variable_pairs:
        first, *others = (source.name for source in pair.transformation.sources)
        is_sum = pair.transformation.is_sum
        if first in other_terms or (not is_sum and not other_terms.isdisjoint(others)):
            name = next(name for name in (first, *others) if name in other_terms)
            raise UserError(
                f"model.torch: {name} is added to another bias, and {pair.keras} of Keras holds it, too, but Lockstep "
                "trains the sum and sets this term to 0; give the model a parameter for each"
            )
        trained = [name for name in others if variables[name].trainable]
        if is_sum and trained and not variables[first].trainable:
            raise UserError(
                f"model.torch: {trained[0]} is trained and {first} is frozen, but {pair.keras} of Keras is the sum of "
                f"both, and Lockstep trains {first} for it; freeze {trained[0]} instead, which trains the same model"
            )
