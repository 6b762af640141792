"""Tests of the transforms of examples with labels of several outputs."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from common.config.task_kinds import MultiOutputSettings
from common.data.batches import GlobalBatch
from common.data.splits.array_column import Column
from common.data.splits.multi_output_split import MultiOutputSplit, split_outputs
from common.data.transforms.builder import build_transforms
from common.data.transforms.transformed_data import _check_mixing, check_transforms, set_ignored_labels
from common.data.transforms.transformed_split import TransformedOutputsSplit, transform_split
from common.errors import UserError
from tests.unit.reference_losses import CLASSIFICATION, REGRESSION

COUNT, HEIGHT, WIDTH = 7, 4, 6
NUMBERS = np.arange(COUNT * HEIGHT * WIDTH).reshape(COUNT, HEIGHT, WIDTH)  # every pixel has a number of its own
IMAGES = NUMBERS[..., None].astype(np.float32)
CLASSES = (np.arange(COUNT) % 3).astype(np.int32)
IDS = np.array([5, 0, 3])


def build_task(ignore_label: int | None = 255) -> MultiOutputSettings:
    values = {
        "segments": {"label": "mask", **asdict(replace(CLASSIFICATION, ignore_label=ignore_label))},
        "depth": {"label": "depth", **asdict(REGRESSION)},
        "group": {"label": "y", **asdict(CLASSIFICATION)},
    }
    return MultiOutputSettings("multi_output", {n: {"output": n, "weight": 1, **v} for n, v in values.items()})


def transformed(*transforms: object, task: MultiOutputSettings | None = None) -> TransformedOutputsSplit:
    task = task or build_task()
    columns = {
        "mask": Column(NUMBERS.astype(np.int32)),
        "depth": Column(NUMBERS.astype(np.float32)),
        "y": Column(CLASSES),
    }
    source = MultiOutputSplit({"photo": Column(IMAGES)}, columns["mask"], None, task, split_outputs(task, columns))
    split = transform_split(source, set_ignored_labels(build_transforms(transforms), task), 0, 3)
    check_transforms(split)
    assert isinstance(split, TransformedOutputsSplit)
    return split


def blank_depth(example: dict[str, np.ndarray], generator: np.random.Generator) -> dict[str, np.ndarray]:
    assert set(example) == {"photo", "mask", "depth", "y"}
    return {**example, "depth": example["depth"] * np.float32(0)}


def find_corners(example: dict[str, np.ndarray], generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {**example, "mask": example["mask"] % WIDTH == 0}


@pytest.mark.parametrize(
    "transforms",
    [
        ["horizontal_flip", "vertical_flip"],
        [{"random_crop": {"size": [2, 3]}}, "horizontal_flip"],
        [{"center_crop": 2}],
    ],
)
def test_every_pixel_keeps_its_labels(transforms: list[object]) -> None:
    split = transformed(*transforms).select_batch(2, 9, IDS)
    arrays = split.gather(IDS, IDS)
    pixels = arrays["photo"].reshape(len(IDS), -1)
    expected = np.concatenate([pixels, pixels, CLASSES[IDS][:, None]], 1)
    assert arrays["labels"].dtype == np.float64
    np.testing.assert_array_equal(arrays["labels"], expected)
    np.testing.assert_array_equal(split.gather_labels(IDS), expected)
    np.testing.assert_array_equal(GlobalBatch(1, IDS, split, "global").labels, expected)
    assert split.example_shapes == {"photo": arrays["photo"].shape[1:], "labels": expected.shape[1:]}
    assert set(arrays) == {"photo", "labels"}


def test_resize_takes_the_nearest_labels() -> None:
    outputs = transformed({"resize": 2}).transform_outputs(IDS).outputs
    np.testing.assert_array_equal(outputs["segments"].labels, NUMBERS[IDS][:, 1::2, 1::3])
    np.testing.assert_array_equal(outputs["depth"].labels, NUMBERS[IDS][:, 1::2, 1::3])


@pytest.mark.parametrize("transforms", [["horizontal_flip"], [{"normalize": {"mean": [0], "std": [2]}}]])
def test_a_shard_has_the_weight_of_each_output(transforms: list[object]) -> None:
    split = transformed(*transforms)
    batch = GlobalBatch(1, IDS, split, "global", output_weights=[1, 0.5, 2])
    plain = replace(batch, split=split.source)
    for shard, expected in zip(batch.shard(1, 2), plain.shard(1, 2), strict=True):
        assert shard["weights"].shape[1:] == (3,)
        np.testing.assert_array_equal(shard["weights"], expected["weights"])
    np.testing.assert_array_equal(batch.evaluation_weight, plain.evaluation_weight)
    assert (batch.weight, batch.prediction_shape) == (1, (len(IDS), -1))


def test_small_integers_of_a_function_are_labels() -> None:
    outputs = transformed(f"{__name__}:find_corners").transform_outputs(IDS).outputs
    assert outputs["segments"].labels.dtype == np.int32
    np.testing.assert_array_equal(outputs["segments"].labels, NUMBERS[IDS] % 6 == 0)


def test_padding_of_a_crop_has_no_loss() -> None:
    task = build_task()
    del task.outputs["depth"]
    split = transformed({"random_crop": 2}, task=task).select_batch(0, 1, IDS)
    labels = split.gather_labels(IDS)[:, :-1]
    counts = split.loss_counts(IDS)
    np.testing.assert_array_equal(counts[:, 0], (labels != 255).sum(1))
    assert (labels == 255).any()
    np.testing.assert_array_equal(counts[:, 1], 1)


def test_a_function_of_the_user_gets_each_array_of_labels() -> None:
    outputs = transformed(f"{__name__}:blank_depth").transform_outputs(IDS).outputs
    assert not outputs["depth"].labels.any()
    np.testing.assert_array_equal(outputs["segments"].labels, NUMBERS[IDS])


@pytest.mark.parametrize(
    ("transforms", "error"),
    [
        (
            [{"random_crop": 2}],
            "random_crop: needs a label for positions without a loss, which the task ignores; the l",
        ),
        ([{"horizontal_flip": {"arrays": ["photo"]}}], "horizontal_flip: would leave mask where they are"),
        ([{"token_masking": {"mask_token": 1, "vocabulary": 9}}], "token_masking: needs tokens"),
        (["mixup"], "the labels of task=multi_output cannot be mixed; remove mixup or cutmix"),
    ],
)
def test_what_has_no_meaning_is_refused(transforms: list[object], error: str) -> None:
    with pytest.raises(UserError, match=f"^data.transforms: {error}"):
        if transforms == ["mixup"]:
            _check_mixing(build_task(), transformed().source)
        transformed(*transforms)


def test_outputs_that_share_labels_ignore_the_same_label() -> None:
    task = build_task()
    task.outputs["edges"] = {**task.outputs["segments"], "ignore_label": 7}
    with pytest.raises(UserError, match="outputs that share mask have different ignore_label"):
        transformed("horizontal_flip", task=task)
