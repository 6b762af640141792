"""Summaries of gradients, which show whether a model has computed the same gradients again."""

import numpy as np

from common.map.array_differences import compute_norm
from common.map.changing_buffers import compute_checksums
from common.map.description import Arrays, GradientSummary


def summarize_gradients(gradients: Arrays) -> dict[str, GradientSummary]:
    """Return the norm and a checksum of each gradient."""
    checksums = compute_checksums(gradients)
    return {
        # The norm of tiny elements underflows to 0
        name: GradientSummary(compute_norm(array) or float(np.abs(array).max(initial=0)), checksums[name])
        for name, array in gradients.items()
    }
