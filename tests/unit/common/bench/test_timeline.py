"""A step's lanes, from a trace that is written by hand: 10 ms for each number."""

from typing import Any

from common.bench.timeline import timeline

BACKWARD = "autograd::engine::evaluate_function: "


def event(
    name: str, start: float, end: float, number: int | None = None, cat: str = "user_annotation"
) -> dict[str, Any]:
    args = {} if number is None else {"Sequence number": number}
    return {"ph": "X", "name": name, "cat": cat, "ts": 1e4 * start, "dur": 1e4 * (end - start), "args": args}


def operation(name: str, start: float, end: float, number: int) -> dict[str, Any]:
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
    event("module: Linear", 7, 8),
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


def shifted(events: list[dict[str, Any]], milliseconds: float) -> list[dict[str, Any]]:
    return [{**each, "ts": each["ts"] + 1e3 * milliseconds} for each in events]


def test_the_last_step_by_layer() -> None:
    found = timeline([*shifted(STEP, -1000), *STEP])
    assert found == {
        "forward": [("Embeddings", 10, 20), ("Layer 1", 21, 40), ("Layer 2", 41, 59), ("Linear", 60, 70)],
        "backward": [("Linear", 100, 110), ("Layer 2", 110, 130), ("Layer 1", 135, 150), ("Embeddings", 150, 160)],
        "reduce": [("reduction 1", 125, 150), ("reduction 2", 140, 180)],
        "update": [("update", 190, 210)],
    }


def test_a_model_of_one_part() -> None:
    step = [each for each in STEP if not each["name"].startswith("module: ") or each["name"] == "module: Embeddings"]
    found = timeline(step)
    assert found is not None and found["forward"] == []


def test_a_rank_that_does_not_train() -> None:
    assert timeline([event("forward", 0, 1)]) is None
