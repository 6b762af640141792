"""Reference implementation of the masks of aligned dropout in unsigned integers."""

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
import xxhash


def splitmix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def example_key(seed: int, step: int, example: int) -> np.uint64:
    domain = np.uint64(xxhash.xxh3_64_intdigest(b"dropout"))
    key = splitmix(splitmix(np.array([seed], np.uint64) ^ domain) + np.uint64(step))
    return np.uint64(splitmix(key + np.uint64(example))[0])


def row_key(key: np.uint64, site: str, coordinates: Sequence[int]) -> np.uint64:
    row = splitmix(np.array([key ^ np.uint64(xxhash.xxh3_64_intdigest(site.encode()))]))
    for coordinate in coordinates:
        row = splitmix(row + np.uint64(coordinate + 1))
    return np.uint64(row[0])


def words(row: np.uint64, features: int) -> np.ndarray:
    """Return a word for each element of a row, uint32 [features]. Words below rate * 2^32 are dropped."""
    low, high = np.uint32(row & np.uint64(0xFFFFFFFF)), np.uint32(row >> np.uint64(32))
    x = np.arange(features, dtype=np.uint32) * np.uint32(0x9E3779B1) + high
    x = x * np.uint32(0x7FEB352D)
    x = ((x ^ (x >> np.uint32(15))) + low) * np.uint32(0x846CA68B)
    x = (x ^ (x >> np.uint32(14))) * np.uint32(0x7FEB352D)
    return x ^ np.uint32(0x80000000)  # gives unsigned words the order of signed words


def mask(keys: np.ndarray, site: str, shape: Sequence[int], rate: float) -> np.ndarray:
    """Return the mask, float64 [n, *shape], from the keys of the examples, int64 [n]."""
    *outer, features = shape
    is_kept = np.empty((len(keys), *shape), bool)
    for index, key in enumerate(keys.view(np.uint64)):
        for coordinates in np.ndindex(*outer):
            is_kept[index, *coordinates] = words(row_key(key, site, coordinates), features) >= rate * 2**32
    return is_kept / (1 - rate)


@cache
def normal_quantiles() -> np.ndarray:
    quantiles = np.array([NormalDist().inv_cdf((index + 0.5) / 2**16) for index in range(2**16)])
    return quantiles / (quantiles.std() * 2**0.5)


def normal(keys: np.ndarray, site: str, shape: Sequence[int]) -> np.ndarray:
    """Return normal numbers, float64 [n, *shape], from the keys of the examples, int64 [n]."""
    *outer, features = shape
    quantiles = normal_quantiles()
    numbers = np.empty((len(keys), *shape))
    for index, key in enumerate(keys.view(np.uint64)):
        for coordinates in np.ndindex(*outer):
            signed = words(row_key(key, site, coordinates), features) ^ np.uint32(0x80000000)
            numbers[index, *coordinates] = quantiles[signed & np.uint32(0xFFFF)] + quantiles[signed >> np.uint32(16)]
    return numbers
