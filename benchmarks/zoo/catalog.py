"""All pairs of the zoo."""

from benchmarks.zoo.repository_pairs import REPOSITORY_PAIRS
from benchmarks.zoo.text_pairs import TEXT_PAIRS
from benchmarks.zoo.vision_pairs import VISION_PAIRS

PAIRS = (*TEXT_PAIRS, *VISION_PAIRS, *REPOSITORY_PAIRS)
