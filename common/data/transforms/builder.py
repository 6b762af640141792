"""Builds the transforms of a config, and finds mistakes in their names and arguments."""

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any

from common.config.transforms import CHOICE, parse_transforms
from common.data.transforms import image_transforms, pixel_transforms, resize_transforms
from common.data.transforms.mixing import MIXINGS, Mixing, MixingChoice
from common.data.transforms.random_choice import RandomChoice
from common.data.transforms.token_transforms import SpanCorruption, TokenMasking
from common.data.transforms.transform import KEY, Transform
from common.data.transforms.trivial_augment import TrivialAugment
from common.data.transforms.user_transform import import_transform
from common.errors import UserError

TRANSFORMS: dict[str, type[Any]] = {
    "random_crop": image_transforms.RandomCrop,
    "center_crop": image_transforms.CenterCrop,
    "horizontal_flip": image_transforms.HorizontalFlip,
    "vertical_flip": image_transforms.VerticalFlip,
    "resize": resize_transforms.Resize,
    "random_resized_crop": resize_transforms.RandomResizedCrop,
    "color_jitter": pixel_transforms.ColorJitter,
    "random_erase": pixel_transforms.RandomErase,
    "trivial_augment": TrivialAugment,
    CHOICE: RandomChoice,
    "normalize": pixel_transforms.Normalize,
    "token_masking": TokenMasking,
    "span_corruption": SpanCorruption,
}
NORMALIZE = "normalize"
# Fields of transforms that are not arguments of the user, because the data and other keys decide them
DERIVED_FIELDS = ("classes", "ignored_labels", "members")
# The transforms that random_choice may choose: not normalize, which all examples need, and none that makes labels.
CHOSEN = (
    image_transforms.RandomCrop,
    image_transforms.CenterCrop,
    image_transforms.HorizontalFlip,
    image_transforms.VerticalFlip,
    resize_transforms.Resize,
    pixel_transforms.ColorJitter,
    pixel_transforms.RandomErase,
    TrivialAugment,
    RandomChoice,
)


@dataclass(frozen=True)
class Step:
    """A transform of one example, and its index in `data.transforms`."""

    name: str
    index: int
    transform: Transform


@dataclass(frozen=True)
class TransformList:
    """The transforms of `data.transforms`: the steps, which transform one example, and then the mixing, if any."""

    steps: tuple[Step, ...]
    mixing: Mixing | MixingChoice | None


def build_transforms(transforms: Sequence[Any], normalization: object = None) -> TransformList:
    """Build the transforms of a config.

    Args:
        transforms: The value of `data.transforms`.
        normalization: Arguments of the `normalize` that is appended if the transforms have none; None to append none.

    Raises:
        UserError: A name or an argument is wrong, or the mixing is not the last transform.
    """
    entries = parse_transforms(transforms)
    mixing = _build_mixing(*entries[-1]) if entries else None
    if mixing is not None:
        entries.pop()
    if misplaced := [name for name, _ in entries if name in MIXINGS]:
        raise UserError(f"{KEY}: {misplaced[0]} must be the last transform, and the only one that mixes examples")
    if normalization is not None and NORMALIZE not in dict(entries):
        entries.append((NORMALIZE, normalization))
    steps = (Step(name, index, _build(name, arguments)) for index, (name, arguments) in enumerate(entries))
    return TransformList(tuple(steps), mixing)


def _build_mixing(name: str, arguments: Any) -> Mixing | MixingChoice | None:  # noqa: ANN401  what a user may write
    """Return the mixing, or the choice among mixings, of an entry; None for an entry of another transform."""
    if name in MIXINGS:
        mixing: Mixing = _construct(MIXINGS[name], name, arguments)
        return mixing
    if name != CHOICE:
        return None
    choice: RandomChoice = _construct(RandomChoice, name, arguments)
    members = parse_transforms(choice.transforms)
    if not all(member in MIXINGS for member, _ in members):
        return None
    return MixingChoice([_construct(MIXINGS[member], member, value) for member, value in members], choice.probabilities)


def _build(name: str, arguments: Any) -> Transform:  # noqa: ANN401  what a user may write
    if ":" in name:
        return import_transform(name, arguments)
    if name not in TRANSFORMS:
        names = ", ".join((*TRANSFORMS, *MIXINGS))
        raise UserError(f"{KEY}: {name}: no such transform; there are {names}, and module:function")
    transform: Transform = _construct(TRANSFORMS[name], name, arguments)
    return _choose_among(transform) if isinstance(transform, RandomChoice) else transform


def _choose_among(choice: RandomChoice) -> RandomChoice:
    """Return a choice with the transforms that it names, which must be transforms of images, or functions."""
    members = []
    for name, arguments in parse_transforms(choice.transforms):
        if name in MIXINGS:
            raise UserError(
                f"{KEY}: {CHOICE}: cannot choose {name} here; a choice among {' and '.join(MIXINGS)} has no other "
                "members, and is the last transform"
            )
        if ":" not in name and (name not in TRANSFORMS or not issubclass(TRANSFORMS[name], CHOSEN)):
            names = [key for key, schema in TRANSFORMS.items() if issubclass(schema, CHOSEN)]
            raise UserError(f"{KEY}: {CHOICE}: cannot choose {name}; it takes {', '.join(names)}, and module:function")
        members.append(_build(name, arguments))
    return replace(choice, members=members)


def _construct(schema: type[Any], name: str, arguments: Any) -> Any:  # noqa: ANN401  an instance of the schema
    """Return a transform. An argument without a name is the value of the first field."""
    options = [option for option in fields(schema) if option.name not in DERIVED_FIELDS]
    options.sort(key=lambda option: option.kw_only is True)  # fields of the base class, such as `arrays`, come last
    if not isinstance(arguments, dict):
        arguments = {options[0].name: arguments}
    names = [option.name for option in options]
    if unknown := [key for key in arguments if key not in names]:
        raise UserError(f"{KEY}: {name}: no argument {unknown[0]}; there are {', '.join(names)}")
    if missing := [option.name for option in options if _is_required(option) and option.name not in arguments]:
        raise UserError(f"{KEY}: {name}: needs {missing[0]}; give {{{name}: {{{missing[0]}: ...}}}}")
    _check_names(name, arguments)
    return schema(**arguments)


def _is_required(option: "Field[Any]") -> bool:
    return option.default is MISSING and option.default_factory is MISSING


def _check_names(name: str, arguments: dict[str, Any]) -> None:
    arrays = arguments.get("arrays", [])
    if not isinstance(arrays, list) or not all(isinstance(array, str) for array in arrays):
        raise UserError(f"{KEY}: {name}: arrays={arrays}: must be a list of names")
