"""Each transform against a statement of what it computes."""

import colorsys
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import interpolate

from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.transforms.pixel_transforms import ColorJitter
from tests.unit.common.data.transforms.samples import (
    CLASSES,
    COUNT,
    HERE,
    IMAGES,
    LABELS,
    RAGGED_SPLIT,
    TOKEN_SPLIT,
    TOKENS,
    gather,
    transformed,
)

ALL = range(COUNT)


def images_of(*transforms: Any, **options: Any) -> np.ndarray:
    return gather(transformed(*transforms), ALL, **options)["images"]


def test_a_random_crop_is_a_part_of_the_padded_image() -> None:
    cropped = images_of({"random_crop": {"padding": 2, "fill": 0.5}})
    padded = np.pad(IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=0.5)
    offsets = set()
    for image, original in zip(cropped, padded, strict=True):
        places = [(top, left) for top in range(5) for left in range(5)]
        is_place = [np.array_equal(image, original[top : top + 6, left : left + 5]) for top, left in places]
        assert any(is_place)
        offsets.add(is_place.index(True))
    assert len(offsets) > 8
    assert images_of({"random_crop": {"size": [4, 3]}}).shape == (COUNT, 4, 3, 3)


@pytest.mark.parametrize(("name", "axis"), [("horizontal_flip", 2), ("vertical_flip", 1)])
def test_flips(name: str, axis: int) -> None:
    flipped, reversed_images = images_of(name), np.flip(IMAGES, axis)
    is_flipped = [np.array_equal(*pair) for pair in zip(flipped, reversed_images, strict=True)]
    assert 4 < sum(is_flipped) < 20
    assert np.array_equal(flipped[np.invert(is_flipped)], IMAGES[np.invert(is_flipped)])
    assert np.array_equal(images_of({name: 1}), reversed_images)
    assert np.array_equal(images_of({name: {"probability": 0}}), IMAGES)


def test_center_crop_and_normalize() -> None:
    assert np.array_equal(images_of({"center_crop": [3, 4]}), IMAGES[:, 1:4, 0:4])
    normalized = images_of({"normalize": {"mean": [0.1, 0.2, 0.3], "std": [2, 3, 4]}})
    expected = (IMAGES - np.array([0.1, 0.2, 0.3], np.float32)) / np.array([2, 3, 4], np.float32)
    assert np.array_equal(normalized, expected)


@pytest.mark.parametrize("size", [[3, 2], [9, 11], [6, 2]])
@pytest.mark.parametrize("antialias", [True, False])
def test_resize_is_the_bilinear_interpolation_of_pytorch(size: list[int], antialias: bool) -> None:
    resized = images_of({"resize": {"size": size, "antialias": antialias}})
    pytorch = interpolate(torch.tensor(IMAGES).permute(0, 3, 1, 2), size, mode="bilinear", antialias=antialias)
    assert np.allclose(resized, pytorch.permute(0, 2, 3, 1).numpy(), rtol=0, atol=2e-6)


def test_color_jitter_draws_the_factors_of_torchvision() -> None:
    brighter = images_of({"color_jitter": {"brightness": 0.5}})
    factors = (brighter / IMAGES).reshape(COUNT, -1)
    for image, original in zip(brighter, IMAGES, strict=True):
        factor = np.median((image / original)[image < 1])
        assert 0.5 <= factor <= 1.5
        assert np.allclose(image, np.clip(original * factor, 0, 1), atol=1e-6)
    assert len(np.unique(np.median(factors, 1))) > 5
    for image, original in zip(images_of({"color_jitter": {"contrast": 0.3}}), IMAGES, strict=True):
        gray = np.asarray(Image.fromarray((original * 255).round().astype(np.uint8)).convert("L")).mean() / 255
        inside = (image > 0) & (image < 1)
        factor = np.median(((image - gray) / (original - gray))[inside])
        assert 0.65 <= factor <= 1.35
        assert np.abs(image - np.clip(gray + factor * (original - gray), 0, 1)).max() < 0.01


def test_saturation_is_that_of_pillow() -> None:
    for image, original in zip(images_of({"color_jitter": {"saturation": 0.4}}), IMAGES, strict=True):
        gray = np.asarray(Image.fromarray((original * 255).round().astype(np.uint8)).convert("L"))[..., None] / 255
        inside = (image > 0) & (image < 1) & (np.abs(original - gray) > 0.2)
        factor = np.median(((image - gray) / (original - gray))[inside])
        assert 0.55 <= factor <= 1.45
        assert np.abs(image - np.clip(gray + factor * (original - gray), 0, 1)).max() < 0.01


def test_hue_is_shifted_along_the_circle() -> None:
    shifts = []
    for image, original in zip(images_of({"color_jitter": {"hue": 0.2}}), IMAGES, strict=True):
        colors = [colorsys.rgb_to_hsv(*pixel) for pixel in original.reshape(-1, 3).astype(float).tolist()]
        hue, _, _ = max(colors, key=lambda color: color[1] * color[2])
        strongest = image.reshape(-1, 3)[[color[0] for color in colors].index(hue)].astype(float)
        shift = (colorsys.rgb_to_hsv(*strongest)[0] - hue + 0.5) % 1 - 0.5
        expected = [colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value) for hue, saturation, value in colors]
        assert np.abs(image.reshape(-1, 3) - expected).max() < 1e-5
        shifts.append(shift)
    assert -0.2 <= min(shifts) < -0.05 and 0.05 < max(shifts) <= 0.2


def test_gray_pixels_have_no_hue() -> None:
    gray = np.repeat(np.linspace(0, 1, 7, dtype=np.float32)[None, :, None], 3, -1)
    jitter = ColorJitter(hue=0.5, arrays=["images"])
    draws = [jitter.draw(1, 7, np.random.default_rng(seed)) for seed in range(5)]
    assert all(np.array_equal(jitter.apply(gray, draw, "images"), gray) for draw in draws)


def test_changes_of_color_have_a_random_order_with_hue_or_saturation() -> None:
    generator, names = np.random.default_rng(0), ["brightness", "contrast", "saturation", "hue"]
    jitter = ColorJitter(0.4, 0.3, 0.2, 0.1)
    assert {tuple(jitter.draw(1, 1, generator)) for _ in range(500)} == set(permutations(names))
    assert {tuple(ColorJitter(0.4, 0.3).draw(1, 1, generator)) for _ in range(20)} == {("brightness", "contrast")}


def test_random_erase_sets_a_rectangle() -> None:
    erased = images_of({"random_erase": {"probability": 1, "scale": [0.1, 0.3], "value": -1}})
    for image, original in zip(erased, IMAGES, strict=True):
        is_erased = (image == -1).all(-1)
        rows, columns = is_erased.any(1), is_erased.any(0)
        assert is_erased.sum() == rows.sum() * columns.sum() > 0
        assert 1 <= is_erased.sum() <= 12
        assert np.array_equal(image[~is_erased], original[~is_erased])


def test_masks_move_with_their_images() -> None:
    masks = (IMAGES[..., 0] * 100).astype(np.int32)
    source = ArraySplit({"images": Column(IMAGES)}, Column(masks))
    names = ["images", "labels"]
    flipped = gather(
        transformed("horizontal_flip", {"random_crop": {"padding": 2, "arrays": names}}, source=source), ALL
    )
    assert np.array_equal(
        flipped["labels"][flipped["labels"] >= 0],
        (flipped["images"][..., 0] * 100).astype(np.int32)[flipped["labels"] >= 0],
    )
    assert (flipped["labels"] == -1).any()
    halved = gather(transformed({"resize": {"size": [3, 5], "arrays": names}}, source=source), ALL)
    assert np.array_equal(halved["labels"], masks[:, 1::2])


def test_a_function_of_the_user() -> None:
    noisy = images_of(f"{HERE}:jitter") - IMAGES
    assert noisy.min() > -1e-6
    assert noisy.std() > 0.2
    halved = images_of({"function": {"name": f"{HERE}:jitter", "scale": 0.5}}) - IMAGES
    assert np.allclose(2 * halved, noisy, atol=1e-6)


def test_token_masking() -> None:
    masked = gather(
        transformed({"token_masking": {"mask_token": 999, "vocabulary": 500, "special": [3, 4]}}, source=TOKEN_SPLIT),
        range(5),
    )
    is_chosen = masked["labels"] >= 0
    assert 10 < is_chosen.sum() < 50
    assert np.array_equal(masked["labels"][is_chosen], TOKENS[is_chosen])
    assert np.array_equal(masked["tokens"][~is_chosen], TOKENS[~is_chosen])
    assert 0.5 < (masked["tokens"][is_chosen] == 999).mean() < 1
    everything = transformed(
        {"token_masking": {"mask_token": 999, "vocabulary": 500, "probability": 1, "special": [3, 4]}},
        source=TOKEN_SPLIT,
    )
    arrays = gather(everything, range(5))
    assert np.argwhere(arrays["labels"] < 0).tolist() == [[0, 3], [0, 4]]
    assert everything.loss_counts(np.arange(5)).tolist() == [38, 40, 40, 40, 40]


def test_examples_of_different_lengths_keep_them() -> None:
    masking = {"token_masking": {"mask_token": 999, "vocabulary": 500, "probability": 0.5}}
    split, ids = transformed(masking, source=RAGGED_SPLIT), np.arange(5)
    arrays, plain = gather(split, range(5)), RAGGED_SPLIT.gather(ids, ids)
    assert arrays.keys() == plain.keys() == {"tokens", "tokens_mask", "labels"}
    assert np.array_equal(arrays["tokens_mask"], plain["tokens_mask"])
    is_chosen, is_real = arrays["labels"] >= 0, plain["tokens_mask"] == 1
    assert 60 < is_chosen.sum() < 140 and not is_chosen[~is_real].any()
    assert np.array_equal(arrays["labels"][is_chosen], plain["tokens"][is_chosen])
    assert np.array_equal(arrays["tokens"][~is_chosen], plain["tokens"][~is_chosen])
    assert split.loss_counts(ids).tolist() == is_chosen.sum(1).tolist()
    assert split.example_shapes == {"tokens": (None,), "tokens_mask": (None,), "labels": (None,)}
    one = split.select_batch(0, 1, ids).gather(np.array([1]), ids)
    assert all(np.array_equal(array[0], arrays[name][1]) for name, array in one.items())


@given(st.integers(0, 4), st.floats(0.05, 0.6), st.floats(1, 5))
def test_span_corruption_loses_no_token(row: int, probability: float, mean_length: float) -> None:
    assume(round(40 * probability) <= 40 * 0.5 or mean_length >= 2)
    arguments = {"first_sentinel": 2000, "end_token": 1999, "start_token": 1998, "mean_length": mean_length}
    split = transformed({"span_corruption": {**arguments, "probability": probability}}, source=TOKEN_SPLIT)
    arrays = {name: array[0].tolist() for name, array in gather(split, [row]).items()}
    cut = max(1, round(40 * probability))
    spans = max(1, round(cut / mean_length))
    assert len(arrays["tokens"]) == 40 - cut + spans + 1
    assert len(arrays["labels"]) == cut + spans + 1
    assert arrays["decoder_input_ids"] == [1998, *arrays["labels"][:-1]]
    targets: dict[int, list[int]] = {}
    for token in arrays["labels"][:-1]:
        if token > 1999 - spans and token not in TOKENS:
            targets[token] = []
        else:
            targets[[*targets][-1]].append(token)
    assert [*targets] == [2000 - k for k in range(spans)]
    restored = [piece for token in arrays["tokens"][:-1] for piece in targets.get(token, [token])]
    assert restored == TOKENS[row].tolist()
    assert arrays["tokens"][-1] == arrays["labels"][-1] == 1999


def test_span_corruption_cuts_everywhere_and_at_the_end() -> None:
    split = transformed({"span_corruption": {"first_sentinel": 2000, "mean_length": 2}}, source=TOKEN_SPLIT)
    places = set()
    for step in range(60):
        for tokens in gather(split, range(5), epoch=step)["tokens"]:
            places |= set(np.flatnonzero(tokens > 1990).tolist())
    assert places == {*range(1, 35), 36}  # of 34 tokens that stay, 3 sentinels and the end


def test_mixup_adds_up_an_example_and_its_partner() -> None:
    mixed = gather(transformed({"mixup": 0.4}), ALL)
    check_mixed(mixed["images"].reshape(COUNT, -1), mixed["labels"])
    assert (mixed["labels"].astype(np.float64).sum(1) == 1).all()  # TensorFlow's gradient needs it
    assert not np.array_equal(mixed["images"], gather(transformed({"mixup": 0.4}), ALL, step=2)["images"])


def check_mixed(images: np.ndarray, labels: np.ndarray) -> None:
    """Check that each image and each label are the same combination of two examples."""
    flat, shares = IMAGES.reshape(COUNT, -1), set()
    for row in range(COUNT):
        for partner in range(COUNT):
            difference = flat[row] - flat[partner]
            share = (
                1.0 if partner == row else float((images[row] - flat[partner]) @ difference / (difference @ difference))
            )
            if np.allclose(images[row], share * flat[row] + (1 - share) * flat[partner], atol=1e-5):
                break
        else:
            raise AssertionError(f"example {row} has no partner")
        if partner != row and share < 0.9999:  # other examples have themselves as partners
            shares.add(round(share, 4))
            expected = share * np.eye(CLASSES)[LABELS[row]] + (1 - share) * np.eye(CLASSES)[LABELS[partner]]
            assert np.allclose(labels[row], expected, atol=1e-5)
    assert len(shares) == 1


def test_cutmix_pastes_a_rectangle_of_the_partner() -> None:
    for step in range(1, 6):
        mixed = gather(transformed({"cutmix": 1.0}), ALL, step=step)
        is_pasted = (mixed["images"] != IMAGES).any(-1)
        area = is_pasted.any(0)
        assert area.sum() == area.any(1).sum() * area.any(0).sum()
        for row in range(COUNT):
            pasted = mixed["images"][row][area]
            partners = [other for other in range(COUNT) if np.array_equal(pasted, IMAGES[other][area])]
            if len(partners) == 1:
                share = 1 - area.mean()
                expected = share * np.eye(CLASSES)[LABELS[row]] + (1 - share) * np.eye(CLASSES)[LABELS[partners[0]]]
                assert np.allclose(mixed["labels"][row], expected, atol=1e-6)
        assert (mixed["labels"].astype(np.float64).sum(1) == 1).all()


def test_targets_with_channels_move_with_their_images() -> None:
    source = ArraySplit({"images": Column(IMAGES)}, Column(IMAGES[..., :1] * 2))
    flipped = gather(transformed({"horizontal_flip": 1}, source=source), ALL)
    assert np.array_equal(flipped["labels"], 2 * flipped["images"][..., :1])
    assert np.array_equal(flipped["images"], IMAGES[:, :, ::-1]) and flipped["images"].flags.c_contiguous
