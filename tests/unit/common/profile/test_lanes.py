"""Tests of the lanes of a step, from a hand-written trace; the unit of its times is 10 ms."""

import pytest

from common.profile.lanes import build_step_lanes
from common.profile.trace import TraceEvent

BACKWARD = "autograd::engine::evaluate_function: "


def event(name: str, start: float, end: float, number: int | None = None, cat: str = "user_annotation") -> TraceEvent:
    args = {} if number is None else {"Sequence number": number}
    return {"ph": "X", "name": name, "cat": cat, "tid": 1, "ts": 1e4 * start, "dur": 1e4 * (end - start), "args": args}


def operation(name: str, start: float, end: float, number: int) -> TraceEvent:
    return event(name, start, end, number, "cpu_op")


STEP = [
    event("forward", 1, 10),
    event("module: DistributedDataParallel", 1.1, 9),
    event("module: Model", 1.2, 8.9),
    event("module: Embeddings", 2, 3),
    operation("aten::embedding", 2.1, 2.9, 10),
    event("module: Encoder", 3, 7),
    event("module: Layer", 3.1, 5),
    event("module: Linear", 3.2, 4.9),
    operation("aten::linear", 3.3, 4.8, 11),
    event("module: Layer", 5.1, 6.9),
    operation("aten::linear", 5.2, 6.8, 12),
    event("module: Pooler", 7, 8),
    operation("aten::linear", 7.1, 7.9, 13),
    operation("aten::sum", 9.1, 9.9, 14),  # the loss: of no layer
    event("backward", 10, 20),
    operation(f"{BACKWARD}SumBackward", 10, 11, 14),
    operation(f"{BACKWARD}LinearBackward", 11, 12, 13),
    operation(f"{BACKWARD}LinearBackward", 12, 13, 12),
    operation(f"{BACKWARD}OtherBackward", 13, 14, 12),
    operation(f"{BACKWARD}AccumulateGrad", 14, 14.5, 2**63),
    operation(f"{BACKWARD}LinearBackward", 14.5, 16, 11),
    operation(f"{BACKWARD}EmbeddingBackward", 16, 17, 10),
    event("gloo:all_reduce", 15, 19),
    event("gloo:all_reduce", 13.5, 16),
    event("update", 20, 22),
]


def shifted(events: list[TraceEvent], milliseconds: float) -> list[TraceEvent]:
    return [{**each, "ts": each["ts"] + 1e3 * milliseconds} for each in events]


def test_the_last_step_by_layer() -> None:
    lanes = build_step_lanes([*shifted(STEP, -1000), *STEP], "torch")
    assert lanes == {
        "forward": [("Embeddings", 10, 20), ("Layer 1", 21, 40), ("Layer 2", 41, 59), ("Pooler", 60, 70)],
        "backward": [("Pooler", 100, 110), ("Layer 2", 110, 130), ("Layer 1", 135, 150), ("Embeddings", 150, 160)],
        "reduce": [("reduction 1", 125, 150), ("reduction 2", 140, 180)],
        "update": [("update", 190, 210)],
    }


def test_a_model_of_one_part() -> None:
    step = [e for e in STEP if not e["name"].startswith("module: ") or e["name"] == "module: Embeddings"]
    lanes = build_step_lanes(step, "torch")
    assert lanes is not None and lanes["forward"] == []


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_a_rank_that_does_not_train(framework: str) -> None:
    assert build_step_lanes([event("forward", 0, 1)], framework) is None


def named(name: str, start: float, end: float) -> TraceEvent:
    return event(f"{name}:Op", start, end, cat="")


TENSORFLOW = [
    event("_train_step", 0, 50, cat=""),
    named("bert_1/layer_0/MatMul", 10, 20),  # belongs to the previous step
    event("_train_step", 60, 160, cat=""),
    event("EagerLocalExecute: __inference__train_step_1", 60, 160, cat=""),
    named("shards", 61, 62),
    named("bert_1/layer_0/dense/MatMul", 70, 80),
    named("bert_1/layer_0/dense/Relu", 80.4, 81),  # after a pause too short to be shown
    named("replica_1/bert_1/layer_0/dense/MatMul", 70, 99),
    named("bert_1/layer_1/dense/MatMul", 81, 90),
    named("gradient_tape/bert_1/layer_1/dense/MatMul", 90, 100),
    named("PartitionedCall/gradients/MatMul_grad", 100, 110),
    named("gradient_tape/bert_1/layer_0/dense/MatMul", 110, 115),
    named("gradient_tape/bert_1/layer_0/dense/Sum", 118, 120),
    named("CollectiveReduceV2", 105, 125),
    named("update/ResourceApplyAdam", 130, 150),
]


def test_tensorflow() -> None:
    lanes = build_step_lanes(TENSORFLOW, "tf")
    assert lanes == {
        "forward": [("forward", 10, 20), ("layer_0", 100, 210), ("layer_1", 210, 300)],
        "backward": [("layer_1", 300, 400), ("backward", 400, 500), ("layer_0", 500, 550), ("layer_0", 580, 600)],
        "reduce": [("reduction 1", 450, 650)],
        "update": [("update", 700, 900)],
    }


def test_a_layer_with_most_operations_is_divided() -> None:
    """A backbone with all layers is divided, and so is a layer with most operations."""
    step = [event("_train_step", 0, 100, cat="")]
    step += [named(f"m/backbone/layer_{n // 10}/op_{n}", n, n + 1) for n in range(30)]
    step += [named("m/head/MatMul", 30, 40), named("other/MatMul", 40, 50)]
    lanes = build_step_lanes(step, "tf")
    assert lanes is not None
    assert [name for name, _, _ in lanes["forward"]] == ["layer_0", "layer_1", "layer_2", "head", "forward"]
    whole = [event("_train_step", 0, 100, cat=""), named("m/only/MatMul", 1, 2), named("m/only/Relu", 3, 4)]
    assert [name for name, _, _ in (build_step_lanes(whole, "tf") or {})["forward"]] == ["only", "only"]


def test_a_gradient_has_the_name_of_its_operation_as_a_scope() -> None:
    """Names as TensorFlow 2.21 writes them for a convolutional network."""
    step = [event("_train_step", 0, 100, cat="")]
    step += [named("net_1/conv2d_1/BiasAdd", 1, 2), named("net_1/dense_1/BiasAdd/ReadVariableOp", 3, 4)]
    step += [named("gradient_tape/net_1/dense_1/MatMul/MatMul_1", 5, 6)]
    step += [named("gradient_tape/net_1/conv2d_1/convolution/Conv2DBackpropFilter", 7, 8)]
    step += [named("gradient_tape/mul/Mul", 9, 10)]
    lanes = build_step_lanes(step, "tf")
    assert lanes is not None
    assert [name for name, _, _ in lanes["backward"]] == ["dense_1", "conv2d_1", "backward"]


def test_a_reduction_on_a_gpu_has_a_copy() -> None:
    copy: TraceEvent = {**event("gloo:all_reduce", 16, 21), "cat": "gpu_user_annotation"}
    lanes = build_step_lanes([*STEP, copy], "torch")
    assert lanes == build_step_lanes(STEP, "torch")
    of_tensorflow: list[TraceEvent] = [
        event("_train_step", 0, 100, cat=""),
        *(named(f"CollectiveReduceV2{end}", start, start + 2) for end, start in (("", 10), ("_1", 12), ("", 30))),
    ]
    for end, start in (("", 11), ("_1", 20)):
        of_tensorflow.append({**named(f"CollectiveReduceV2{end}", start, start + 9), "pid": 1})
    lanes = build_step_lanes(of_tensorflow, "tf")
    assert lanes is not None
    assert lanes["reduce"] == [("reduction 1", 100, 200), ("reduction 2", 120, 290), ("reduction 3", 300, 320)]
