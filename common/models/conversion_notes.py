"""Notes on variables that a conversion of weights leaves out, or whose values the target's factory draws."""

from collections.abc import Iterable

from common.map.description import Arrays, ModelDescription
from common.map.pair_models import PairedModels
from common.map.transformation import find_unselected
from common.models.loaded_weights import list_names

COUNTER = "num_batches_tracked"  # the end of the names of BatchNorm's counters in PyTorch


def describe_conversion(models: PairedModels, source: Arrays, target: Arrays, to_keras: bool) -> list[str]:
    """Return sentences about variables that have no counterpart, or have one for some of their rows only.

    Args:
        models: The models.
        source: The variables of the source.
        target: The variables that the target's factory draws.
        to_keras: Whether the source is PyTorch's model; otherwise Keras's.
    """
    pairs = models.parameter_map.variable_pairs
    torch_only = _list_unpaired(models.torch_description, models.parameter_map.torch_names)
    keras_only = _list_unpaired(models.keras_description, [pair.keras for pair in pairs])
    left_out, kept = (torch_only, keras_only) if to_keras else (keras_only, torch_only)
    notes = []
    if left_out:
        notes.append(f"{list_names(left_out)}: left out; the other model lacks what no output depends on")
    if kept:
        notes.append(f"{list_names(kept)}: keeps the values that the factory draws; no output depends on them")
    transformations = [pair.transformation for pair in pairs]
    longer = sorted(find_unselected(transformations, models.torch_description.shapes))
    if longer:
        others = "are left out" if to_keras else "keep the values that the factory draws"
        notes.append(
            f"{list_names(longer)}: only the rows that Keras's model has are converted; the other rows {others}"
        )
    notes += _describe_sums(models, to_keras)
    counters = [name for name in (source if to_keras else target) if name.endswith(COUNTER)]
    if counters:
        notes.append(f"{list_names(counters)}: {'left out; Keras has no such counters' if to_keras else 'stays 0'}")
    return notes


def _list_unpaired(description: ModelDescription, paired: Iterable[str]) -> list[str]:
    names = set(paired)
    return [name for name, variable in description.variables.items() if name not in names and not variable.is_constant]


def _describe_sums(models: PairedModels, to_keras: bool) -> list[str]:
    sums = [pair.transformation for pair in models.parameter_map.variable_pairs if pair.transformation.is_sum]
    if not sums:
        return []
    if to_keras:
        return [f"{list_names([transformation.join_sources() for transformation in sums])}: one bias in Keras, the sum"]
    others = [str(source) for transformation in sums for source in transformation.sources[1:]]
    return [f"{list_names(others)}: zero, because Keras's bias is the sum of two, and the first one gets it"]
