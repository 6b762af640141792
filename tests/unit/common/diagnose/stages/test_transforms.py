"""The stage "transforms" names the first transform after which examples differ."""

import numpy as np

from common.data.batches import GlobalBatch, Split
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.transforms.trace import Trace, trace_transforms
from common.diagnose.findings import Stage
from common.diagnose.stages.transforms import compare_traces
from tests.unit.common.data.transforms.samples import HERE, IMAGE_SPLIT, IMAGES, LABELS, transformed

IDS = np.arange(6)


def trace(*transforms: object, source: Split = IMAGE_SPLIT, ids: np.ndarray = IDS) -> Trace:
    split = transformed(*transforms, source=source).select_batch(0, 1, ids)
    return trace_transforms(GlobalBatch(1, ids, split, "global"))


def compare(a: Trace, b: Trace) -> Stage:
    stage = Stage("transforms")
    compare_traces(stage, "step 1", a, b)
    return stage


def test_equal_traces_have_no_cause() -> None:
    transforms = ({"random_crop": 2}, f"{HERE}:jitter", {"mixup": 0.3})
    stage = compare(trace(*transforms), trace(*transforms))
    assert stage.verdict == "equal" and len(stage.checks) == 2 * 4


def test_the_transform_that_differs_is_named() -> None:
    a = trace({"random_crop": 2}, {"color_jitter": {"brightness": 0.2}}, "horizontal_flip")
    b = trace({"random_crop": 2}, {"color_jitter": {"brightness": 0.4}}, "horizontal_flip")
    (cause,) = compare(a, b).causes
    assert (cause.cause, cause.tensor) == ("transform", "images")
    assert cause.sentence == (
        "step 1: after color_jitter, images differs in 6 of 6 examples, which were equal before it"
    )


def test_examples_of_other_shapes_are_named() -> None:
    (cause,) = compare(trace({"resize": 4}), trace({"resize": 3})).causes
    assert cause.cause == "transform"


def test_data_that_differ_before_the_transforms_are_explained() -> None:
    doubled = ArraySplit({"images": Column(2 * IMAGES)}, Column(LABELS))
    (cause,) = compare(trace({"random_crop": 2}), trace({"random_crop": 2}, source=doubled)).causes
    assert cause.cause == "other_data"
    assert cause.sentence.startswith("step 1: before the transforms, images of B is 2 times A's")


def test_only_common_examples_are_compared() -> None:
    a, b = trace("horizontal_flip"), trace("horizontal_flip", ids=IDS[::-1] + 3)
    assert compare(a, b).verdict == "equal"
    assert compare(a, [(place, {}) for place, _ in b]).checks == []


def test_other_lists_are_left_to_the_config() -> None:
    a, b = trace("horizontal_flip"), trace("vertical_flip")
    assert compare(a, b).verdict == "equal"
