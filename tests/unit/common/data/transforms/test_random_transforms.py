"""Tests of the transforms that choose at random: rectangles that are resized, TrivialAugment, and a random choice."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.transforms.resize_transforms import RandomResizedCrop, Resize
from common.data.transforms.trivial_augment import OPERATIONS, Draw, TrivialAugment
from common.errors import UserError
from tests.unit.common.data.transforms.samples import COUNT, HERE, IMAGES, LABELS, gather, transformed

ALL = range(COUNT)
LEVELS = np.rint(IMAGES * 255).astype(np.uint8)
IMAGE = np.random.default_rng(3).integers(0, 256, (40, 50, 3), np.uint8)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32))
def test_a_random_resized_crop_is_a_part_of_the_image(height: int, width: int, seed: int) -> None:
    crop = RandomResizedCrop(size=8, scale=(0.2, 0.7))
    rows, columns = crop.draw(height, width, np.random.default_rng(seed))
    assert 0 <= rows.start < rows.stop <= height and 0 <= columns.start < columns.stop <= width
    shape = rows.stop - rows.start, columns.stop - columns.start
    if min(height, width) > 30 and max(height, width) < 1.3 * min(height, width):
        assert 0.18 < shape[0] * shape[1] / (height * width) < 0.75 and 0.7 < shape[1] / shape[0] < 1.4
    else:  # the ratio is kept as far as whole pixels allow it
        assert (shape[1] + 1) / shape[0] > 0.5 and shape[1] / (shape[0] + 1) < 2


def test_a_random_resized_crop_is_cut_out_and_resized_with_its_labels() -> None:
    crop = RandomResizedCrop(size=[6, 9], arrays=["images", "labels"])
    draw = slice(2, 30), slice(11, 40)
    expected = Image.fromarray(IMAGE).crop((11, 2, 40, 30)).resize((9, 6), Image.Resampling.BILINEAR)
    assert np.array_equal(crop.apply(IMAGE, draw, "images"), np.asarray(expected))
    masks = IMAGE[..., 0].astype(np.int32)
    assert np.isin(crop.apply(masks, draw, "labels"), masks[draw]).all()
    whole = {"size": [3, 4], "scale": [1, 1], "ratio": [5 / 6, 5 / 6]}
    images = gather(transformed({"random_resized_crop": whole}), ALL)["images"]
    assert np.array_equal(images, gather(transformed({"resize": [3, 4]}), ALL)["images"])


def test_images_of_uint8_are_resized_as_pillow_does() -> None:
    expected = Image.fromarray(IMAGE).resize((17, 80), Image.Resampling.BILINEAR)
    for image in (IMAGE, IMAGE.astype(np.int32)):
        resized = Resize([80, 17]).apply(image, None, "images")
        assert np.array_equal(resized, np.asarray(expected)) and resized.dtype == image.dtype
        assert resized.flags.writeable  # a function of the user may change it in place


def test_float64_of_a_function_is_resized_like_float32() -> None:
    image = (IMAGE / 255).astype(np.float32)
    for antialias in (True, False):
        resize = Resize([80, 17], antialias)
        assert np.array_equal(resize.apply(image.astype(float), None, "images"), resize.apply(image, None, "images"))


def augment(operation: str, index: int, sign: int = 1) -> np.ndarray:
    strength = sign * OPERATIONS[operation][0][index]
    return TrivialAugment(fill=7).apply(IMAGE, Draw(operation, strength), "images")


def test_operations_are_those_of_their_documentation() -> None:
    assert len(OPERATIONS) == 14
    assert {len(strengths) for strengths, _, _ in OPERATIONS.values()} == {1, 31}
    assert np.array_equal(augment("identity", 0), IMAGE)
    moved = np.full_like(IMAGE, 7)
    moved[:, 15:] = IMAGE[:, :-15]  # torchvision's 15.999999 pixels
    assert np.array_equal(augment("translate_x", 15), moved)
    moved = np.full_like(IMAGE, 7)
    moved[:-32] = IMAGE[32:]
    assert np.array_equal(augment("translate_y", 30, -1), moved)
    rows = np.arange(40)[:, None]
    columns = np.floor(np.arange(50) + 0.5 + 0.99 * (rows + 0.5)).astype(int)
    sheared = np.where((columns < 50)[..., None], IMAGE[rows, np.minimum(columns, 49)], 7)
    assert (augment("shear_x", 30) != sheared).mean() < 0.01  # Pillow rounds places to 1 / 65536
    brighter = np.clip(IMAGE * 1.495, 0, 255)
    assert np.abs(augment("brightness", 15).astype(int) - brighter).max() <= 1
    assert np.array_equal(augment("posterize", 30), IMAGE & 0b11000000)
    assert np.array_equal(augment("solarize", 15), np.where(IMAGE < 127.5, IMAGE, 255 - IMAGE))
    assert not np.array_equal(augment("rotate", 3), augment("rotate", 3, -1))


def test_trivial_augment_draws_every_operation_equally_often() -> None:
    generator, transform = np.random.default_rng(5), TrivialAugment()
    draws = [transform.draw(8, 8, generator) for _ in range(2800)]
    counts = Counter(draw.operation for draw in draws)
    assert {*counts} == {*OPERATIONS} and all(140 < count < 260 for count in counts.values())
    strengths = {draw.strength for draw in draws if draw.operation == "rotate"}
    assert len(strengths) > 50 and min(strengths) < -120


def test_floats_are_rounded_to_levels() -> None:
    source = ArraySplit({"images": Column(LEVELS)}, Column(LABELS))
    levels = gather(transformed("trivial_augment", source=source), ALL)["images"]
    floats = ArraySplit({"images": Column(LEVELS.astype(np.float32) / 255)}, Column(LABELS))
    images = gather(transformed("trivial_augment", source=floats), ALL)["images"]
    assert levels.dtype == np.int32 and images.dtype == np.float32  # a split returns uint8 as int32
    assert np.array_equal(np.rint(images * 255), levels)
    assert (levels != LEVELS).any(axis=(1, 2, 3)).sum() > COUNT / 2
    bright = ArraySplit({"images": Column(IMAGES * 2)}, Column(LABELS))
    with pytest.raises(UserError, match="needs floats from 0 to 1, but images has .*; put normalize after it"):
        gather(transformed("trivial_augment", source=bright), ALL)


def test_a_choice_takes_each_transform_with_its_probability() -> None:
    flips: list[object] = [{"horizontal_flip": 1}, {"vertical_flip": 1}]
    counts: Counter[str] = Counter()
    for arguments in (flips, {"transforms": flips, "probabilities": [0.5, 0.25]}):
        for epoch in range(20):
            images = gather(transformed({"random_choice": arguments}), ALL, epoch=epoch)["images"]
            for image, original in zip(images, IMAGES, strict=True):
                changes = {"": original, "left": original[:, ::-1], "up": original[::-1]}
                (change,) = [name for name, array in changes.items() if np.array_equal(array, image)]
                counts[f"{change} {isinstance(arguments, dict)}"] += 1
    shares = {name: count / (20 * COUNT) for name, count in counts.items()}
    expected = {"left False": 0.5, "up False": 0.5, "left True": 0.5, "up True": 0.25, " True": 0.25}
    assert shares.keys() == expected.keys()
    assert all(abs(shares[name] - share) < 0.08 for name, share in expected.items())


def test_a_choice_among_mixings_is_made_for_each_batch() -> None:
    choice = {"random_choice": {"transforms": [{"mixup": 0.4}, "cutmix"], "probabilities": [0.4, 0.4]}}
    split, ids, counts = transformed("horizontal_flip", choice), np.arange(COUNT), Counter[str]()
    for step in range(1, 61):
        batch = split.select_batch(0, step, ids)
        mixed, plain = batch.gather(ids, ids), gather(transformed("horizontal_flip"), ALL, step=step)
        assert mixed["labels"].shape == (COUNT, 3) and (mixed["labels"].sum(1) == 1).all()
        if np.array_equal(mixed["images"], plain["images"]):
            assert np.array_equal(mixed["labels"].argmax(1), LABELS)
            counts["plain"] += 1
        else:
            counts["cutmix" if np.isin(mixed["images"], plain["images"]).all() else "mixup"] += 1
        shard = batch.gather(ids[5:9], ids[5:9])
        assert all(np.array_equal(shard[name], array[5:9]) for name, array in mixed.items())
    assert 15 < counts["mixup"] < 35 and 15 < counts["cutmix"] < 35 and counts["plain"] > 4, counts


def test_a_choice_passes_arguments_and_labels_on() -> None:
    masks = (IMAGES[..., 0] * 100).astype(np.int32)
    source = ArraySplit({"images": Column(IMAGES)}, Column(masks))
    nested = {"random_choice": [{"random_choice": [{"random_crop": {"padding": 2, "arrays": ["images", "labels"]}}]}]}
    labels = gather(transformed(nested, source=source), ALL)["labels"]
    assert (labels == -1).any() and np.isin(labels, [*masks.ravel(), -1]).all()
    noisy = gather(transformed({"random_choice": [f"{HERE}:jitter"]}), ALL)["images"]
    assert np.array_equal(noisy, gather(transformed(f"{HERE}:jitter"), ALL)["images"]) or (noisy > IMAGES - 1e-6).all()


def test_inputs_of_height_and_width_are_resized_as_one_plane() -> None:
    depth = IMAGES[..., 0]
    source = ArraySplit({"images": Column(IMAGES), "depth": Column(depth)}, Column(LABELS))
    for transform in ("resize", "random_resized_crop"):
        entry = {transform: {"size": [3, 4], "arrays": ["images", "depth"]}}
        resized = gather(transformed(entry, source=source), ALL)
        assert resized["depth"].shape == (COUNT, 3, 4)
        assert np.array_equal(resized["depth"], resized["images"][..., 0])


def test_trivial_augment_does_not_separate_inputs_unless_it_is_told_so() -> None:
    source = ArraySplit({"images": Column(IMAGES), "depth": Column(IMAGES[..., 0])}, Column(LABELS))
    with pytest.raises(UserError, match="would leave depth where they are, .*height and width of images; if that is"):
        transformed("trivial_augment", source=source)
    moved = gather(transformed({"trivial_augment": {"arrays": ["images"]}}, source=source), ALL)
    assert np.array_equal(moved["depth"], IMAGES[..., 0]) and not np.array_equal(moved["images"], IMAGES)


def test_trivial_augment_refuses_nan() -> None:
    image = np.full((4, 4, 1), np.nan, np.float32)
    with pytest.raises(UserError, match="needs floats from 0 to 1, but images has nan to nan"):
        TrivialAugment().apply(image, Draw("identity", 0.0), "images")
