"""Operations of PyTorch that pack sequences by their lengths, which a mask of Keras stands for.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence

from common.diagnose.findings import Explanation
from common.diagnose.recorded.masked_tokens import MASK_ZERO
from common.diagnose.recorded.operations.differing_section import DifferingSection
from common.diagnose.recorded.operations.operation_names import PACK, RECURRENT_LAYERS, UNPACK, normalize_name
from common.diagnose.recorded.operations.operation_words import describe_lines, locate
from common.diagnose.recorded.operations.section_side import SectionSide
from common.recording.operation_format import Operation


def explain_packing(section: DifferingSection, place: str) -> Explanation | None:
    """Explain sequences that one script packs by their lengths, if the recurrent layers of the other get no mask."""
    for name, lacking, side, other in (("A", "B", section.a, section.b), ("B", "A", section.b, section.a)):
        packing, packing_of_other = (
            [x for x in part.operations if normalize_name(x) == PACK] for part in (side, other)
        )
        layers = [x for x in other.operations if normalize_name(x) in RECURRENT_LAYERS]
        if packing and layers and not packing_of_other and not any(_receives_mask(other, x) for x in layers):
            sentence = (
                f"{place}: {name} packs the sequences in {locate(packing[0])}, and {describe_lines(other, layers[:1])} "
                f"of {lacking} goes on over the padding, without a mask: set mask_zero=True of the embedding, or pack"
            )
            return Explanation(MASK_ZERO, sentence, side=lacking.lower())
    return None


def _receives_mask(side: SectionSide, layer: Operation) -> bool:
    return any(side.get_statistics(x)["dtype"] == "bool" for x in layer["inputs"])


def drop_packing(a: Sequence[Operation], b: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Leave out the lines that pack sequences and unpack them, which a mask of the other script stands for."""
    lines = {(x["file"], x["line"]) for x in (*a, *b) if normalize_name(x) in (PACK, UNPACK)}
    kept_a, kept_b = (
        [x for x in operations if (x["file"], x["line"]) not in lines or normalize_name(x) in RECURRENT_LAYERS]
        for operations in (a, b)
    )
    return (kept_a, kept_b) if kept_a or kept_b else ([*a], [*b])
