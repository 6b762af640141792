"""Outputs of one layer of which two scripts use different ones, such as the cell state of an LSTM for the last output.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from itertools import product

from common.diagnose.recorded.operations.number_sources import find_source
from common.diagnose.recorded.operations.operation_names import RECURRENT_LAYERS, normalize_name
from common.diagnose.recorded.operations.operation_words import shorten
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.recording.operation_format import Operation

ORDINALS = ("first", "second", "third", "fourth")


def describe_other_output(a: SectionSide, b: SectionSide, matches: TensorMatches) -> str:
    """Return words for a recurrent layer of which one script uses an output that is not the other script's, or nothing.

    Args:
        a: Side A of a section.
        b: Side B.
        matches: The tensors that are equal.
    """
    received = [sorted(x for x in side.received if side.is_matched(x))[:MOST_COMPARED] for side in (a, b)]
    for index, (side, name) in enumerate(((a, "A"), (b, "B"))):
        for used, counterpart in product(received[index], received[1 - index]):
            layer, output = _find_layer(side, used)
            if layer is None or matches.are_equal(*((used, counterpart) if index == 0 else (counterpart, used))):
                continue
            for place, tensor in enumerate(layer["outputs"][: len(ORDINALS)]):
                if place != output and matches.are_equal(
                    *((tensor, counterpart) if index == 0 else (counterpart, tensor))
                ):
                    title, words = shorten(side.find_layer(layer) or layer["name"]), ORDINALS[output]
                    return (
                        f"{name} uses the {words} output of {title}, and the other script what is its {ORDINALS[place]}"
                    )
    return ""


def _find_layer(side: SectionSide, tensor: int) -> tuple[Operation | None, int]:
    """Return the recurrent layer that returned a tensor as one of several, and which one of its outputs it is."""
    layer, returned = find_source(side, tensor)
    outputs = [] if layer is None else layer["outputs"][: len(ORDINALS)]
    if layer is None or len(outputs) < 2 or normalize_name(layer) not in RECURRENT_LAYERS or returned not in outputs:
        return None, 0
    return layer, outputs.index(returned)
