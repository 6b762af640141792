"""Transforms that mix each example of a global batch with another example, its partner.

A permutation of the global batch, drawn from the seed and the step, gives each example its partner, which may be in
another shard. All examples of a global batch are mixed in the same proportion, as in the papers of mixup and cutmix.
The labels become the proportions of the classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from typing_extensions import override

from common.data.transforms.image_transforms import ImageTransform
from common.data.transforms.random_choice import choose
from common.data.transforms.transform import KEY, Example, describe_arrays, is_number, require
from common.errors import UserError

Arrays = dict[str, np.ndarray]  # name -> array of n examples


@dataclass(frozen=True)
class Mixing:
    """Base of `mixup` and `cutmix`. The proportion is drawn from the distribution Beta(alpha, alpha).

    `classes` is the number of classes if labels are classes; 0 if they are shares of classes already.
    """

    alpha: float = 1.0
    arrays: Sequence[str] = field(default=(), kw_only=True)
    classes: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        require(is_number(self.alpha) and self.alpha > 0, f"{self.title()}: alpha", self.alpha, "a number above 0")

    @classmethod
    def title(cls) -> str:
        """Return the name of the transform in the config."""
        return cls.__name__.lower()

    def bind(self, example: Example, classes: int) -> Self:
        """Return the transform for examples like `example`. classes: the number of classes; 0: not classes.

        Raises:
            UserError: The transform does not fit the examples.
        """
        labels = example["labels"]
        is_class = labels.ndim == 0 and labels.dtype.kind == "i" and classes > 0
        if not is_class and not (labels.ndim == 1 and labels.dtype.kind == "f"):
            raise UserError(
                f"{KEY}: {self.title()}: mixes a class for each example, or shares of each class; an example has "
                f"{describe_arrays({'labels': labels})}"
            )
        return replace(self, arrays=self.choose_arrays(example), classes=classes if is_class else 0)

    def choose_arrays(self, example: Example) -> list[str]:
        """Return the names of the arrays to mix."""
        raise NotImplementedError

    def mix(self, examples: Arrays, partners: Arrays, generator: np.random.Generator) -> Arrays:
        """Return examples, each mixed with its partner. generator: in the same state for all shards of a batch."""
        images, share = self.mix_arrays(examples, partners, generator)
        labels, partner_labels = self.spread(examples["labels"]), self.spread(partners["labels"])
        return {**examples, **images, "labels": share * labels + (1 - share) * partner_labels}

    def spread(self, labels: np.ndarray) -> np.ndarray:
        """Return labels as shares of each class, float32 [n, classes]."""
        if not self.classes:
            return labels
        shares = np.zeros((len(labels), self.classes), np.float32)
        shares[np.arange(len(labels)), labels] = 1
        return shares

    def mix_arrays(
        self, examples: Arrays, partners: Arrays, generator: np.random.Generator
    ) -> tuple[Arrays, np.float32]:
        """Return the mixed arrays, and the share of the examples' own labels."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mixup(Mixing):
    """Average floating-point inputs with those of the partner in a random proportion (Zhang et al., "mixup", 2018)."""

    @override
    def choose_arrays(self, example: Example) -> list[str]:
        floats = [name for name, array in example.items() if array.dtype.kind == "f" and name != "labels"]
        names = [*self.arrays] or floats
        if not self.arrays and any(
            array.ndim > 1 and name not in (*floats, "labels") for name, array in example.items()
        ):
            raise UserError(
                f"{KEY}: mixup: an example has {describe_arrays(example)}; make its images floats with normalize, or "
                "name the inputs to mix in arrays"
            )
        if not names or {*names} - {*floats}:
            raise UserError(f"{KEY}: mixup: needs inputs of floats; an example has {describe_arrays(example)}")
        return names

    @override
    def mix_arrays(
        self, examples: Arrays, partners: Arrays, generator: np.random.Generator
    ) -> tuple[Arrays, np.float32]:
        share = _round_share(generator.beta(self.alpha, self.alpha))
        return {name: share * examples[name] + (1 - share) * partners[name] for name in self.arrays}, share


class _Images(ImageTransform):
    """Images of `cutmix`: its `bind` finds their names."""

    training_only: ClassVar[bool] = True

    @classmethod
    @override
    def title(cls) -> str:
        return "cutmix"


@dataclass(frozen=True)
class Cutmix(Mixing):
    """Replace a random rectangle of each image by the partner's (Yun et al., "CutMix", 2019).

    The labels are mixed in the proportion of the areas.
    """

    @override
    def choose_arrays(self, example: Example) -> list[str]:
        return [*_Images(arrays=self.arrays).bind(example).arrays]

    @override
    def mix_arrays(
        self, examples: Arrays, partners: Arrays, generator: np.random.Generator
    ) -> tuple[Arrays, np.float32]:
        height, width = examples[self.arrays[0]].shape[1:3]
        side = np.sqrt(1 - generator.beta(self.alpha, self.alpha))  # side of the rectangle / side of the image
        row, column = generator.integers(0, height), generator.integers(0, width)
        half_height, half_width = int(side * height) // 2, int(side * width) // 2
        rows = slice(max(0, row - half_height), min(height, row + half_height))
        columns = slice(max(0, column - half_width), min(width, column + half_width))
        mixed = {name: examples[name].copy() for name in self.arrays}
        for name, images in mixed.items():
            images[:, rows, columns] = partners[name][:, rows, columns]
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return mixed, _round_share(1 - area / (height * width))


@dataclass(frozen=True)
class MixingChoice:
    """Apply one of some mixings, chosen for each global batch as `RandomChoice` chooses."""

    members: Sequence[Mixing]
    probabilities: Sequence[float] | None

    def bind(self, example: Example, classes: int) -> Self:
        """Return the choice for examples like `example`. Raise UserError if a mixing does not fit the examples."""
        return replace(self, members=[member.bind(example, classes) for member in self.members])

    def mix(self, examples: Arrays, partners: Arrays, generator: np.random.Generator) -> Arrays:
        """Return the examples after the mixing that the generator chooses. The labels are shares of classes anyway."""
        index = choose(len(self.members), self.probabilities, generator)
        if index is None:
            return {**examples, "labels": self.members[0].spread(examples["labels"])}
        return self.members[index].mix(examples, partners, generator)


def _round_share(share: float) -> np.float32:
    """Return a multiple of 2^-24, so that float32 holds the share and 1 - share exactly, and labels add up to 1.

    TensorFlow's gradient of the cross-entropy assumes that they do.
    """
    return np.float32(round(share * 2**24) / 2**24)


MIXINGS: dict[str, type[Mixing]] = {"mixup": Mixup, "cutmix": Cutmix}
