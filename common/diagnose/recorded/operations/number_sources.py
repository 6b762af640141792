"""Operations that compute the numbers of a tensor, before others that only cast or reshape it."""

from common.diagnose.recorded.operations.operation_names import KEEPING, normalize_name
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED
from common.recording.operation_format import Operation


def find_source(side: SectionSide, tensor: int) -> tuple[Operation | None, int]:
    """Return the operation that computes the numbers of a tensor, and what it returned; None if no operation does.

    If the numbers are an input of the script, return the first operation that keeps them.
    """
    source, returned = None, tensor
    for _ in range(MOST_COMPARED):
        producer = side.find_producer(tensor)
        if producer is None:
            break
        source, returned = producer, tensor
        selection = side.find_selection(producer)
        keeps_all = selection is not None and len({*side.count_elements([producer["inputs"][0], tensor])}) == 1
        if not (keeps_all or normalize_name(producer) in KEEPING) or not producer["inputs"]:
            break
        tensor = producer["inputs"][0]
    return source, returned
