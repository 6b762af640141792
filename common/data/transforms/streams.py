"""Generators of random numbers for transforms.

Philox (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) has a key of two words. The first is hashed
from the seed, the epoch and the id of an example, or from the seed and the step of a global batch. The second is the
index of the transform, so that the numbers of a transform do not depend on those that other transforms draw.
"""

import numpy as np
import xxhash

from common.data.batch_plan import hash_words

EXAMPLES = np.uint64(xxhash.xxh3_64_intdigest(b"transforms of examples"))
BATCHES = np.uint64(xxhash.xxh3_64_intdigest(b"transforms of batches"))


def derive_keys(domain: np.uint64, seed: int, epoch: int, ids: np.ndarray) -> np.ndarray:
    """Return a key for each id, uint64 [n]. domain: makes the keys independent of other uses of the seed."""
    epoch_key = hash_words(hash_words(np.array([seed], np.uint64) ^ domain) + np.uint64(epoch))
    return hash_words(epoch_key + ids.astype(np.uint64))


class Streams:
    """A generator that is restarted for every example and transform. Creating a new one takes ten times as long."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def start(self, key: np.uint64, index: int) -> np.random.Generator:
        """Return the generator at the start of a stream. The generator is valid until the next call."""
        self._state["state"]["key"][:] = key, index
        self._bits.state = self._state
        return self._generator
