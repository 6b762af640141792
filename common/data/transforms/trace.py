"""The examples of a global batch before the transforms, and after each of them, for common.diagnose."""

from typing import TypeAlias

from common.data.batches import GlobalBatch
from common.data.transforms.rows import gather_examples
from common.data.transforms.streams import EXAMPLES, Streams, derive_keys
from common.data.transforms.transform import Example
from common.data.transforms.transformed_split import TransformedSplit

TRACED_EXAMPLES = 32  # examples of a global batch that are traced; not all, because images are large

# A list of moments, such as after a transform: the name of the moment, and the examples by their ids.
Trace: TypeAlias = list[tuple[str, dict[int, Example]]]


def trace_transforms(batch: GlobalBatch) -> Trace:
    """Return the first examples of a batch before the transforms, after each of them, and after mixing.

    The list is empty if the data has no transforms.
    """
    split, ids = batch.split, batch.ids[:TRACED_EXAMPLES]
    if not isinstance(split, TransformedSplit):
        return []
    streams = Streams()
    keys = derive_keys(EXAMPLES, split.seed, split.epoch, ids)
    _, rows = gather_examples(split.source, ids, ids)
    examples = {example_id: _copy(row) for example_id, row in zip(ids.tolist(), rows, strict=True)}
    trace: Trace = [("before the transforms", examples)]
    for step in split.transforms.steps:
        examples = {
            example_id: step.transform(_copy(example), streams.start(key, step.index))
            for (example_id, example), key in zip(examples.items(), keys, strict=True)
        }
        trace.append((f"after {step.name}", examples))
    if split.transforms.mixing is not None:
        arrays = split.gather(ids, ids)
        mixed = [{name: array[row, ...] for name, array in arrays.items()} for row in range(len(ids))]
        trace.append(("after mixing", dict(zip(ids.tolist(), mixed, strict=True))))
    return trace


def _copy(example: Example) -> Example:
    """Return a copy, because a function of the user may change its arrays."""
    return {name: array.copy() for name, array in example.items()}
