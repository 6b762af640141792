"""Recurrent layers of PyTorch that take the examples for time steps, because batch_first=True is missing.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from common.diagnose.findings import Explanation
from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.time_axis import describe_exchange, takes_time_first


def explain_time_first(pair: RecordPair, layer: LayerMatch) -> Explanation | None:
    """Explain a pair of layers that receive one array, of which only one takes the time in front; else None."""
    takers = []
    for side, path in ((pair.a, layer.path_a), (pair.b, layer.path_b)):
        has_time_first = any(facts["path"] == path and takes_time_first(facts) for facts in side.layers)
        takers += [(side, path)] if has_time_first and not side.batches.are_time_first else []
    if len(takers) != 1:
        return None
    ((side, path),) = takers
    return Explanation("time_axis", describe_exchange(path, side.name), side=side.name)
