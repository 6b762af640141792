"""Mistakes in `data.transforms`: one line, before training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.transforms import list_functions, parse_transforms
from common.data.cache import open_transformed_cache
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.transforms.transformed_data import check_transforms, transform_data
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.data.transforms.samples import (
    HERE,
    IMAGE_SPLIT,
    IMAGES,
    LABELS,
    RAGGED_SPLIT,
    TOKEN_SPLIT,
    TOKENS,
    transformed,
)

AN_EXAMPLE = "an example has images float32 [6, 5, 3], labels int32 []"


def explain(*transforms: Any, **options: Any) -> str:
    with pytest.raises(UserError) as raised:
        check_transforms(transformed(*transforms, **options))
    text = str(raised.value)
    assert text.startswith(("data.transforms: ", "data.transforms="))
    assert "\n" not in text
    return text.removeprefix("data.transforms").lstrip("=: ")


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (
            "crop",
            "crop: no such transform; there are random_crop, center_crop, horizontal_flip, vertical_flip, resize, "
            "random_resized_crop, color_jitter, random_erase, trivial_augment, random_choice, normalize, "
            "token_masking, span_corruption, mixup, cutmix, and module:function",
        ),
        ({"random_crop": {"pad": 4}}, "random_crop: no argument pad; there are padding, size, fill, arrays"),
        ({"random_crop": -1}, "random_crop: padding=-1: must be a number of pixels, at least 0"),
        ({"random_crop": {"size": [9, 5]}}, "random_crop: size=[9, 5]: must be at most [6, 5], the padded image"),
        ("random_crop", "random_crop: padding=0: leaves each image as it is; give a padding or a size"),
        ({"center_crop": 6}, "center_crop: size=6: must be at most [6, 5], the image"),
        ({"horizontal_flip": 2}, "horizontal_flip: probability=2: must be from 0 to 1"),
        ("resize", "resize: needs size; give {resize: {size: ...}}"),
        ({"resize": "big"}, "resize: size=big: must be a number of pixels, or [height, width]"),
        ({"color_jitter": {"contrast": "no"}}, "color_jitter: contrast=no: must be a number, at least 0"),
        ({"color_jitter": {"hue": 0.6}}, "color_jitter: hue=0.6: must be a number from 0 to 0.5"),
        (
            {"random_erase": {"scale": [0.5, 2]}},
            "random_erase: scale=[0.5, 2]: must be [smallest, largest], above 0 and at most 1",
        ),
        (
            {"random_resized_crop": {"size": 4, "ratio": [2, 1]}},
            "random_resized_crop: ratio=[2, 1]: must be [smallest, largest], above 0",
        ),
        ({"trivial_augment": 256}, "trivial_augment: fill=256: must be a whole number from 0 to 255"),
        ({"random_choice": "vertical_flip"}, "random_choice: transforms=vertical_flip: must be a list of transforms"),
        (
            {"random_choice": {"transforms": ["vertical_flip"], "probabilities": [0.5, 0.6]}},
            "random_choice: probabilities=[0.5, 0.6]: must be a number for each transform, with a sum of at most 1",
        ),
        (
            {"random_choice": ["vertical_flip", "mixup"]},
            "random_choice: cannot choose mixup here; a choice among mixup and cutmix has no other members, and is "
            "the last transform",
        ),
        (
            {"random_choice": ["vertical_flip", "normalize"]},
            "random_choice: cannot choose normalize; it takes random_crop, center_crop, horizontal_flip, "
            "vertical_flip, resize, random_resized_crop, color_jitter, random_erase, trivial_augment, random_choice, "
            "and module:function",
        ),
        ({"normalize": [0.5]}, "normalize: needs std; give {normalize: {std: ...}}"),
        ({"normalize": {"mean": [0.5], "std": [0]}}, "normalize: std=[0]: must be a list of numbers above 0"),
        (
            {"normalize": {"mean": [1, 2], "std": [1]}},
            "normalize: mean=[1, 2]: must be one number, or one for 3 channels",
        ),
        ({"mixup": 0}, "mixup: alpha=0: must be a number above 0"),
        (
            {"horizontal_flip": {"arrays": ["photo"]}},
            "horizontal_flip: needs images [height, width, channels], but an example has images float32 [6, 5, "
            "3], labels "
            "int32 []; name them as {horizontal_flip: {arrays: [NAME]}}",
        ),
        (
            {"token_masking": {"mask_token": 1, "vocabulary": 9}},
            "token_masking: needs tokens [length] of integers, but an example has images float32 [6, 5, 3], "
            "labels int32 []; "
            "name them by array: NAME",
        ),
        (
            {"span_corruption": {"first_sentinel": 9, "mean_length": 0.5}},
            "span_corruption: mean_length=0.5: must be at",
        ),
        ({"span_corruption": 9}, "span_corruption: needs tokens [length] of integers, but an example has images float"),
        (
            "nowhere_at_all:f",
            "nowhere_at_all:f: no module nowhere_at_all in the working directory or on the Python path (",
        ),
        (f"{HERE}:nothing", f"{HERE}:nothing: {HERE} has no function nothing"),
        (f"{HERE}:COUNT", f"{HERE}:COUNT: {HERE} has no function COUNT"),
        (
            f"{HERE}:shared",
            f"{HERE}:shared draws from a generator that all code shares, such as np.random; draw from the "
            "generator that it gets",
        ),
        (
            f"{HERE}:impure",
            f"{HERE}:impure returns another result when it is called again with the same example and generator; "
            "draw from "
            "the generator that it gets",
        ),
        (f"{HERE}:wide", f"{HERE}:wide returns images as float64; return one of float32, int32, int64, uint8, bool"),
        (
            f"{HERE}:uneven",
            "images becomes float32 [3, 5, 3] in the first example, but in example 1 images float32 "
            "[4, 5, 3]; return "
            "the same shape and type for every example",
        ),
        (f"{HERE}:undefined", f"{HERE}:undefined returns nan or infinity in images of training example 2"),
        (f"{HERE}:partial", f"{HERE}:partial returns images; return a dict with images, labels"),
    ],
)
def test_mistakes(transform: Any, expected: str) -> None:
    assert explain(transform).startswith(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"first_sentinel": 0},
            "span_corruption: first_sentinel=0: too small for 2 sentinels, which count down from it",
        ),
        ({"first_sentinel": 7}, "span_corruption: the data has the token 6, which is a sentinel; choose a first_sent"),
        (
            {"first_sentinel": 999, "decoder_array": "tokens"},
            "span_corruption: decoder_array=tokens: must be a name th",
        ),
        (
            {"first_sentinel": 999, "probability": 0.9, "mean_length": 1},
            "span_corruption: 40 tokens are too few for 36 spans of 36 tokens together; take longer",
        ),
    ],
)
def test_spans_that_do_not_fit(arguments: dict[str, float], expected: str) -> None:
    assert explain({"span_corruption": arguments}, source=TOKEN_SPLIT).startswith(expected)


def test_an_array_beside_the_corrupted_tokens_is_refused() -> None:
    columns = {"tokens": Column(TOKENS), "attention_mask": Column(np.ones_like(TOKENS))}
    text = explain(
        {"span_corruption": {"first_sentinel": 999, "array": "tokens"}}, source=ArraySplit(columns, Column(TOKENS))
    )
    assert text.startswith("span_corruption: changes the number of tokens, but not attention_mask; remove that array.")


def test_an_error_of_the_user_names_its_line() -> None:
    text = explain(f"{HERE}:broken")
    assert text.startswith(f"{HERE}:broken raises KeyError: 'photo' (")
    assert Path(__file__).with_name("samples.py").name in text


def test_examples_that_do_not_fit() -> None:
    assert explain("mixup", "horizontal_flip") == (
        "mixup must be the last transform, and the only one that mixes examples"
    )
    integers = ArraySplit({"images": Column((IMAGES * 9).astype(np.int32))}, Column(LABELS))
    assert explain("random_erase", source=integers) == (
        "random_erase: images has the type int32; put normalize before it, such as {normalize: {mean: [0], std: [255]}}"
    )
    normalized = ArraySplit({"images": Column(IMAGES - np.float32(1))}, Column(LABELS))
    assert "images has values from -" in explain({"color_jitter": 0.1}, source=normalized)
    four = ArraySplit({"images": Column(np.concatenate([IMAGES, IMAGES[..., :1]], -1))}, Column(LABELS))
    assert explain({"color_jitter": {"hue": 0.1}}, source=four) == (
        "color_jitter: images has 4 channels; saturation and hue need red, green and blue"
    )
    two = ArraySplit({"a": Column(IMAGES), "b": Column(IMAGES)}, Column(LABELS))
    assert "name them as {horizontal_flip: {arrays: [NAME]}}" in explain("horizontal_flip", source=two)
    depth = ArraySplit({"images": Column(IMAGES), "depth": Column(IMAGES[..., 0])}, Column(LABELS))
    assert explain("horizontal_flip", source=depth) == (
        "horizontal_flip: may have to move depth, too, which has the height and width of images; name what it "
        "moves as {horizontal_flip: {arrays: [images, NAME]}}"
    )
    assert explain("mixup", source=TOKEN_SPLIT).startswith("mixup: mixes a class for each example, or shares")
    ragged = ArraySplit({"x": Column(np.arange(5), np.array([0, 2, 5]))}, Column(np.zeros(2, np.int32)))
    assert explain("mixup", source=ragged) == "x has examples of different lengths, which cannot be mixed; pad them"
    tokens = ArraySplit({"x": Column(np.arange(70), np.array([0, 30, 70]))}, Column(np.zeros(2, np.int32)))
    assert explain({"span_corruption": {"first_sentinel": 99}}, source=tokens) == (
        "span_corruption: changes x from int64 [30] to int64 [28]; examples of different lengths must keep their shape"
    )
    assert explain(f"{HERE}:narrow", source=RAGGED_SPLIT) == (
        f"{HERE}:narrow: changes labels from int32 [40] to uint8 [40]; labels of different lengths must keep their type"
    )


def test_evaluations_leave_out_random_transforms(make_config: MakeConfig) -> None:
    config = make_config("model=convnet", "data.transforms=[horizontal_flip, {center_crop: 4}, mixup]")
    ids = np.arange(24)
    _, validation = transform_data(config, IMAGE_SPLIT, IMAGE_SPLIT, 3, None)
    arrays = validation.gather(ids, ids)
    assert np.array_equal(arrays["images"], IMAGES[:, 1:5, 0:4])
    assert np.array_equal(arrays["labels"], LABELS)
    masking = "data.transforms=[{token_masking: {mask_token: 1, vocabulary: 200}}]"
    splits = transform_data(make_config("model=convnet", masking), TOKEN_SPLIT, TOKEN_SPLIT, 0, None)
    assert all((split.gather(ids[:5], ids[:5])["labels"] == -100).any() for split in splits)
    config = make_config("model=convnet", "data.transforms=[{horizontal_flip: 1}]", "data.transform_evaluation=true")
    _, validation = transform_data(config, IMAGE_SPLIT, IMAGE_SPLIT, 3, None)
    assert np.array_equal(validation.gather(ids, ids)["images"], IMAGES[:, :, ::-1])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["data.transforms=[{random_crop: {padding: 1, arrays: [images, labels]}}]", "task.ignore_label=null"],
            "data.transforms: random_crop: needs a label for positions without a loss, which the task ignores; set "
            "task.ignore_label, or that of the output",
        ),
        (
            ["data.transforms=[{horizontal_flip: {arrays: [images]}}]"],
            "data.transforms: horizontal_flip: would leave labels where they are; an example has images float32 "
            "[6, 5, 3], labels int32 [6, 5]; name labels of pixels in arrays, too, and give them the height and width "
            "of the image",
        ),
        (
            ["data.transforms=[mixup]", "task.loss=focal"],
            "task.loss=focal: a mixed example has no class; choose cross_entropy, or mix no examples",
        ),
    ],
)
def test_transforms_that_the_task_cannot_use(make_config: MakeConfig, overrides: list[str], expected: str) -> None:
    masks = ArraySplit({"images": Column(IMAGES)}, Column((IMAGES[..., 0] * 3).astype(np.int32)))
    with pytest.raises(UserError) as raised:
        transform_data(make_config("model=convnet", *overrides), masks, masks, 0, None)
    assert str(raised.value) == expected


def test_examples_that_cannot_be_mixed(make_config: MakeConfig) -> None:
    weighted = ArraySplit({"images": Column(IMAGES)}, Column(LABELS), np.ones(len(LABELS)))
    config = make_config("model=convnet", "data.transforms=[mixup]")
    with pytest.raises(UserError, match=r"^data\.weight: a mixed example has no weight; set it to null, or mix no exa"):
        transform_data(config, weighted, weighted, 3, None)
    config = make_config("model=convnet", "task=binary", "data.transforms=[mixup]")
    with pytest.raises(UserError, match="mixup: mixes a class for each example, or shares of each class"):
        transform_data(config, IMAGE_SPLIT, IMAGE_SPLIT, 3, None)


def test_evaluations_with_other_shapes(make_config: MakeConfig) -> None:
    config = make_config("model=convnet", "data.transforms=[{random_crop: {size: 4}}]")
    with pytest.raises(UserError) as raised:
        open_transformed_cache(config, None)
    assert str(raised.value) == (
        "data.transforms: images is float32 [4, 4, 1] in training, but float32 [8, 8, 1] in evaluations, which "
        "leave out "
        "random transforms; add center_crop, resize or normalize, or set data.transform_evaluation=true"
    )


def test_images_of_a_data_set_are_normalized_last(make_config: MakeConfig) -> None:
    ids = np.arange(9)
    plain = open_transformed_cache(make_config("model=convnet"), None).validation.gather(ids, ids)["images"]
    flipped = open_transformed_cache(make_config("model=convnet", "data.transforms=[horizontal_flip]"), None)
    assert np.allclose(flipped.validation.gather(ids, ids)["images"], plain, rtol=0, atol=1e-6)
    config = make_config("model=convnet", "data.transforms=[{normalize: {mean: [0], std: [1]}}]")
    images = open_transformed_cache(config, None).train.gather(ids, ids)["images"]
    assert (images.min(), images.max()) == (0, 1)


@pytest.mark.parametrize(
    "entry", [3, {}, {"a": 1, "b": 2}, {"m:f": {}}, {"function": "f"}, {"function": {"name": "f"}}]
)
def test_other_forms(entry: Any) -> None:
    with pytest.raises(UserError, match="is not a transform; use a name"):
        parse_transforms([entry])


def test_functions_of_the_user_are_listed() -> None:
    transforms = ["horizontal_flip", {"random_crop": 4}, "a:f", {"function": {"name": "b:g", "x": 1}}]
    assert list_functions(transforms) == ["a:f", "b:g"]
    nested = {"random_choice": {"transforms": ["c:h", {"random_choice": ["d:i", {"resize": 3}]}]}}
    assert list_functions([*transforms, nested]) == ["a:f", "b:g", "c:h", "d:i"]
    assert parse_transforms(transforms)[2:] == [("a:f", {}), ("b:g", {"x": 1})]
    assert list_functions(None) == list_functions(["horizontal_flip"]) == []
