"""Comparison of the gradients of a PyTorch and a Keras model, a few variables at a time.

All gradients take as much memory as the model. They stay in the processes of the models, which first send only the size
and a checksum of each.
"""

from collections.abc import Iterator, Mapping, Sequence

from common.map.array_differences import relative_difference
from common.map.array_groups import group_by_size
from common.map.description import Arrays, GradientSummary
from common.map.pair_variables import ParameterMap, VariablePair
from common.map.side import Side, receive_all

GRADIENT_TOLERANCE = 1e-9  # largest difference, relative to the norm of the array
# A gradient whose norm is less than this share of the largest gradient's norm is compared relative to that share of the
# largest norm, because it consists mostly of rounding errors.
SMALL_GRADIENT_SHARE = 1e-4

GradientSummaries = Mapping[str, GradientSummary]


def compare_gradients(
    sides: tuple[Side, Side],
    parameter_map: ParameterMap,
    torch_weights: Arrays,
    torch_summaries: GradientSummaries,
    keras_summaries: GradientSummaries,
) -> tuple[float, str]:
    """Return the largest difference between gradients, and an error, which is empty if all gradients agree.

    The error names the last differing gradient in the order of execution, which is nearest to the output: the backward
    pass spreads a difference from there to the earlier layers.

    Args:
        sides: The processes of PyTorch and of Keras, which have computed gradients.
        parameter_map: The correspondence between the variables.
        torch_weights: The weights of PyTorch's model.
        torch_summaries: The summaries of PyTorch's gradients.
        keras_summaries: The summaries of Keras's gradients.
    """
    min_norm = SMALL_GRADIENT_SHARE * max((summary.norm for summary in keras_summaries.values()), default=0)
    pairs = [
        pair
        for pair in parameter_map.variable_pairs
        if pair.keras in keras_summaries and pair.transformation.sources[0].name in torch_summaries
    ]
    largest, message = 0.0, ""
    for group, torch_gradients, keras_gradients in _fetch_gradients(sides, pairs, torch_weights):
        arrays = torch_weights | torch_gradients
        for pair in group:
            gradient = pair.transformation.gradient_to_keras(arrays)
            difference = relative_difference(gradient, keras_gradients[pair.keras], min_norm)
            largest = max(largest, difference)
            if difference > GRADIENT_TOLERANCE:
                message = (
                    "the outputs agree and gradients differ; nearest to the output: "
                    f"{' + '.join(map(str, pair.transformation.sources))} (PyTorch) and {pair.keras} (Keras), by "
                    f"{difference:.1e} of the norm{_explain_padding(parameter_map, pair.keras)}"
                )
    return largest, message


def _fetch_gradients(
    sides: tuple[Side, Side], pairs: Sequence[VariablePair], torch_weights: Arrays
) -> Iterator[tuple[list[VariablePair], Arrays, Arrays]]:
    """Yield groups of pairs with their gradients of both models. The processes send the next ones in the meantime."""
    sizes = {
        pair.keras: sum(torch_weights[source.name].nbytes for source in pair.transformation.sources) for pair in pairs
    }
    pairs_by_name = {pair.keras: pair for pair in pairs}
    groups = [[pairs_by_name[name] for name in names] for names in group_by_size(sizes)]
    for group in groups[:1]:
        _request_gradients(sides, group)
    for index, group in enumerate(groups):
        torch_gradients, keras_gradients = receive_all(*sides)
        for next_group in groups[index + 1 : index + 2]:
            _request_gradients(sides, next_group)
        yield group, torch_gradients, keras_gradients


def _request_gradients(sides: tuple[Side, Side], pairs: Sequence[VariablePair]) -> None:
    sides[0].send("read_gradients", names={source.name for pair in pairs for source in pair.transformation.sources})
    sides[1].send("read_gradients", names={pair.keras for pair in pairs})


def _explain_padding(parameter_map: ParameterMap, keras_name: str) -> str:
    """Explain a different gradient by PyTorch's padding row if the variable is an embedding that has one."""
    for pair in parameter_map.layer_pairs:
        row = pair.torch.settings.get("padding_idx")
        if keras_name in pair.keras.variable_names and row is not None:
            return f"; PyTorch's has padding_idx={row}, a row that gets no gradient there"
    return ""
