"""Tests of the sentences that name the first operation that two scripts compute differently."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import (
    add_lines,
    explain_operations,
)
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.operations.operation_words import locate
from common.diagnose.recorded.operations.stopped_gradients import explain_stopped_gradients
from common.recording.index_notation import write_index
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import to_tensor

LOGITS = np.random.default_rng(0).normal(size=(8, 3))
FILE = "test_explanation.py"


def make_pair(a: OperationTrace, b: OperationTrace, counts: tuple[int, int] = (8, 8)) -> Any:
    """Return records of scripts with these operations, whose first micro-batches have `counts` examples."""
    sides = [
        SimpleNamespace(
            record=SimpleNamespace(ranks=[SimpleNamespace(operations=trace)]),
            batches=SimpleNamespace(count_examples=lambda step, count=count: [count]),
        )
        for trace, count in zip((a, b), counts, strict=True)
    ]
    names = [x.removeprefix("weight/") for x in a["names"] if x.startswith("weight/") and x in b["names"]]
    variables = [SimpleNamespace(title=x, names_a=(x,), names_b=(x,)) for x in names]
    orders = {1: np.random.default_rng(1).permutation(max(counts))}
    return SimpleNamespace(
        sides=sides,
        a=sides[0],
        b=sides[1],
        equal_steps=[1],
        orders=orders,
        noise=1e-7,
        precision="float32",
        equal_tensors=[],
        models=SimpleNamespace(variables=variables, layers=[]),
    )


def _mean(script: Script, scale: float | None = None, is_stopped: bool = False, name: str = "mean") -> OperationTrace:
    x = script.name("weight/logits", script.inputs["logits"])
    squares = script.call("mul", np.multiply, x, x)
    if is_stopped:
        script.call("detach", np.copy, script.call("amax", np.max, squares))  # a number that the script prints
        squares = script.call("detach", np.copy, squares)
    scaled = squares if scale is None else script.call("mul", np.multiply, squares, to_tensor(scale))
    return script.finish(script.call(name, np.mean if name == "mean" else np.sum, scaled))


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation | None:
    return explain_operations(make_pair(a, b), "loss", LOSS, LOSS)


def _script() -> Script:
    return Script(logits=LOGITS)


def test_operations_are_named_with_their_lines() -> None:
    explanation = _explain(_mean(_script()), _mean(_script(), name="sum"))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    place, _, rest = explanation.sentence.partition(": from tensors with the same numbers A computes mean in ")
    a, _, b = rest.partition(", and B sum in ")
    assert place == "loss"
    assert a.startswith(f"{FILE}:")
    assert b.startswith(f"{FILE}:")
    assert "`return script.finish(" in a


@pytest.mark.parametrize("is_added", [True, False])
def test_operations_without_counterpart(is_added: bool) -> None:
    with_scale, without = _mean(_script(), scale=3.0), _mean(_script())
    explanation = _explain(*((without, with_scale) if is_added else (with_scale, without)))
    assert explanation is not None
    words = "loss: B also computes mul(3) in " if is_added else "loss: B does not compute mul(3) in "
    assert explanation.cause == ("added_operation" if is_added else "missing_operation")
    assert explanation.sentence.startswith(f"{words}{FILE}:")
    assert "sum" not in explanation.sentence


def test_input_that_only_one_script_uses_is_named() -> None:
    """B computes both halves of a sum from the first input."""

    def add(first: str, second: str) -> OperationTrace:
        script = Script(left=LOGITS, right=LOGITS + 1)
        squares = [script.call("square", np.square, script.inputs[name]) for name in (first, second)]
        return script.finish(script.call("add", np.add, *squares))

    explanation = _explain(add("left", "right"), add("left", "left"))
    assert explanation is not None
    assert (explanation.cause, explanation.side) == ("unused_input", "b")
    assert explanation.sentence == "loss: B computes nothing from the model's input right"
    reverse = _explain(add("left", "left"), add("left", "right"))
    assert reverse is not None
    assert (reverse.cause, reverse.side) == ("unused_input", "a")


def test_operation_after_the_difference_is_not_blamed() -> None:
    """Only A changes the layout of what it scales, and B scales by another number."""
    a = _script()
    scaled = a.call("mul", np.multiply, a.inputs["logits"], to_tensor(0.5))
    explanation = _explain(a.finish(a.call("mean", np.mean, a.call("reshape", np.ravel, scaled))), _scale_mean(0.25))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert ": from tensors with the same numbers A computes mul(0.5) in " in explanation.sentence
    assert ", and B mul(0.25) in " in explanation.sentence


def _scale_mean(scale: float) -> OperationTrace:
    script = _script()
    scaled = script.call("mul", np.multiply, script.inputs["logits"], to_tensor(scale))
    return script.finish(script.call("mean", np.mean, scaled))


def test_texts_of_a_record_stay_on_one_short_line() -> None:
    a, b = _mean(_script()), _mean(_script(), name="sum")
    for operation in a["operations"]:
        operation["name"], operation["file"] = "x\n" * 1000, "\x1b[31m\n"
        operation["code"], operation["arguments"] = "\u202e\n" * 1000, {"\x1b": "\n"}
    explanation = _explain(a, b)
    assert explanation is not None
    assert explanation.sentence.isprintable()
    assert len(explanation.sentence) < 1000


def _weigh(function: Callable[..., object], has_centers: bool = True) -> OperationTrace:
    """Return the operations of a loss that depends on the order of numbers."""
    script = _script()
    x = script.call("arrange", function, script.inputs["logits"])
    trace = script.finish(script.call("amax", np.max, script.call("cumsum", np.cumsum, x)))
    for tensor in [] if has_centers else trace["tensors"]:
        tensor.pop("centers", None)
    return trace


def test_equal_operations_on_numbers_in_another_order_are_not_confirmed() -> None:
    """Older records do not show the order."""
    explanation = _explain(_weigh(np.copy), _weigh(np.flip, has_centers=False))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", False)
    assert explanation.sentence.endswith("are not recorded differ")


def test_operations_that_return_numbers_in_another_order_are_named() -> None:
    explanation = _explain(_weigh(lambda x: np.sort(x, 0)), _weigh(lambda x: np.sort(x, 0)[::-1]))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", False)
    assert explanation.sentence.startswith("loss: the same numbers are in another order: A computes arrange in ")
    assert ", and B arrange in " in explanation.sentence
    assert "cumsum" not in explanation.sentence.partition("`")[0]


def test_an_operation_that_only_one_script_needs_for_the_order_is_named() -> None:
    explanation = _explain(_weigh(np.copy), _weigh(np.flip))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("added_operation", True)
    assert explanation.sentence.startswith("loss: B also computes arrange in ")


@pytest.mark.parametrize("is_moved", [False, True])
def test_another_tensor_that_both_scripts_have_is_named(is_moved: bool) -> None:
    def score(index: int) -> OperationTrace:
        script = _script()
        tensors = [script.call(x.__name__, x, script.inputs["logits"]) for x in (np.exp, np.tanh)]
        moved = script.call("permute", np.transpose, tensors[index]) if is_moved else tensors[index]
        head = script.call("head", np.cos, script.name("layer/head/input", moved))
        terms = [script.call("amax", np.max, x) for x in (*tensors, head)]
        return script.finish(script.call("sum", lambda *x: np.sum(x), *terms))

    names = "layer/head/input", "layer/head/input"
    explanation = explain_operations(make_pair(score(0), score(1)), "head", *names)
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    words = "head: each script passes another tensor that both have: the result of exp in test_explanation.py:"
    assert explanation.sentence.startswith(words)
    assert " in A and of tanh in test_explanation.py:" in explanation.sentence
    same = explain_operations(make_pair(score(0), score(0)), "head", *names)
    assert same is None or not same.confirmed


def test_a_loop_that_selects_the_same_elements_is_not_blamed() -> None:
    """A takes two columns at once, and B one after the other. Their functions are others."""

    def add(is_loop: bool) -> OperationTrace:
        script = _script()
        x, indices = script.inputs["logits"], [np.s_[:, 0], np.s_[:, 1]] if is_loop else [np.s_[:, :2]]
        parts = [script.call("getitem", lambda x, i=i, **_: x[i], x, index=write_index(i)) for i in indices]
        results = [script.call("exp" if is_loop else "cosh", np.exp if is_loop else np.cosh, part) for part in parts]
        return script.finish(script.call("sum", lambda *x: sum(map(np.sum, x)), *results))

    explanation = _explain(add(is_loop=False), add(is_loop=True))
    assert explanation is not None
    assert "same numbers A computes x[:, :2]" not in explanation.sentence
    assert "exp in test_explanation.py:" in explanation.sentence


def test_results_that_are_not_finite_are_not_confirmed() -> None:
    """Both scripts mask by infinity. What they compute from it differs."""

    def attend(is_doubled: bool) -> OperationTrace:
        script = _script()
        masked = script.call("masked_fill", lambda x: np.where(x > 0, x, -np.inf), script.inputs["logits"])
        powers = script.call("exp2" if is_doubled else "exp", np.exp2 if is_doubled else np.exp, masked)
        trace = script.finish(script.call("mean", np.mean, powers))
        statistics = trace["tensors"][trace["operations"][0]["outputs"][0]]
        statistics["sum"] = statistics["norm"] = statistics["minimum"] = statistics["maximum"] = None
        return trace

    explanation = _explain(attend(is_doubled=False), attend(is_doubled=True))
    assert explanation is not None
    assert not explanation.confirmed
    assert "exp2" in explanation.sentence


def test_one_of_two_equal_operations_is_known_by_its_tensors() -> None:
    """B lacks the first of two additions: the second one adds the same tensor on both sides."""

    def add(*names: str) -> OperationTrace:
        script = Script(x=LOGITS, left=LOGITS**2, right=np.abs(LOGITS))
        x = script.inputs["x"]
        for name in names:
            x = script.call("add", np.add, x, script.inputs[name])
        used = script.call("sum", np.sum, script.inputs["left"])  # both use all inputs
        return script.finish(script.call("sub", np.subtract, script.call("mean", np.mean, x), used))

    explanation = _explain(add("left", "right"), add("right"))
    assert explanation is not None
    assert explanation.confirmed
    assert "B does not compute add" in explanation.sentence


def test_input_in_another_form_is_not_unused() -> None:
    """A's script has inverted its mask, and B's model inverts it."""

    def mask(inverted: bool, power: int) -> OperationTrace:
        zeros = np.arange(24).reshape(8, 3) % 4 == 0
        script = Script(x=LOGITS, mask=zeros if inverted else ~zeros)
        squares = script.call("pow", lambda x, power: x**power, script.inputs["x"], power=power)
        mask = script.inputs["mask"]
        kept = mask if inverted else script.call("sub", lambda x: 1.5 - x, mask)
        return script.finish(script.call("mean", np.mean, script.call("mul", np.multiply, squares, kept)))

    explanation = _explain(mask(inverted=True, power=2), mask(inverted=False, power=4))
    assert explanation is not None
    assert explanation.cause != "unused_input"


def test_omitted_mask_is_named() -> None:
    """B lacks an operation and what only this one uses."""

    def mask(is_masked: bool) -> OperationTrace:
        script = Script(x=LOGITS, mask=np.arange(24.0).reshape(8, 3) % 4)
        x, labels = script.inputs["x"], script.inputs["mask"]
        if is_masked:
            x = script.call(
                "masked_fill", lambda x, y: np.where(y, -9, x), x, script.call("eq", np.isclose, labels, labels)
            )
        return script.finish(
            script.call("add", np.add, script.call("amax", np.max, labels), script.call("sum", np.sum, x))
        )

    explanation = _explain(mask(is_masked=True), mask(is_masked=False))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("missing_operation", True)
    assert "masked_fill" in explanation.sentence


def test_stop_outside_of_the_weights_is_not_named() -> None:
    def subtract(is_stopped: bool) -> OperationTrace:
        script = Script(logits=LOGITS, labels=LOGITS + 1)
        labels = script.inputs["labels"]
        labels = script.call("detach", np.copy, labels) if is_stopped else labels
        return script.finish(
            script.call("mean", np.mean, script.call("sub", np.subtract, script.inputs["logits"], labels))
        )

    assert explain_stopped_gradients(make_pair(subtract(is_stopped=True), subtract(is_stopped=False))) is None


def test_lines_are_added_to_another_explanation() -> None:
    explanation = Explanation("loss_reduction", "the loss of A is a mean; that of B is a sum")
    pair = make_pair(_mean(_script()), _mean(_script(), name="sum"))
    sentence = add_lines(explanation, pair, LOSS, LOSS).sentence
    assert sentence.startswith(f"{explanation.sentence} (A: {FILE}:")
    assert f", B: {FILE}:" in sentence
    assert add_lines(explanation, make_pair(_mean(_script()), _mean(_script())), LOSS, LOSS) == explanation


def test_indices_are_added_to_another_explanation() -> None:
    explanation = Explanation("pooling", "A has the last token; B has the first token")
    pair = make_pair(_index(np.s_[:, -1]), _index(np.s_[:, 0]))
    sentence = add_lines(explanation, pair, LOSS, LOSS).sentence
    assert f"(A: x[:, -1] in {FILE}:" in sentence
    assert f", B: x[:, 0] in {FILE}:" in sentence


def test_stopped_gradient_is_named_if_the_loss_depends_on_it() -> None:
    explanation = explain_stopped_gradients(make_pair(_mean(_script()), _mean(_script(), is_stopped=True)))
    assert explanation is not None
    assert (explanation.cause, explanation.side) == ("stopped_gradient", "b")
    assert explanation.sentence.startswith("only B computes no gradient through detach in ")
    assert explanation.sentence.count("detach") == 2  # the operation, and once in its line
    both = make_pair(_mean(_script(), is_stopped=True), _mean(_script(), is_stopped=True))
    assert explain_stopped_gradients(both) is None


def test_other_examples_or_missing_operations_are_not_compared() -> None:
    a, b = _mean(_script()), _mean(_script(), name="sum")
    assert explain_operations(make_pair(a, b, counts=(8, 4)), "loss", LOSS, LOSS) is None
    assert explain_operations(make_pair(a, {**b, "complete": False}), "loss", LOSS, LOSS) is None
    assert explain_operations(make_pair(a, {**b, "loss": None}), "loss", LOSS, LOSS) is None
    assert explain_operations(make_pair(a, b), "x", "layer/fc/input", "layer/fc/input") is None


def test_private_arguments_are_not_named() -> None:
    a, b = _mean(_script()), _mean(_script(), name="sum")
    a["operations"][-1]["arguments"] = {"dim": 1, "_stacklevel": 3}
    explanation = _explain(a, b)
    assert explanation is not None
    assert "A computes mean(dim=1) in " in explanation.sentence


def _index(index: Any, name: str = "getitem", is_reversed: bool = False) -> OperationTrace:
    script = _script()
    x = script.inputs["logits"]
    if is_reversed:  # the statistics are the same
        x = script.call("flip", lambda x, **_: x[::-1, ::-1], x, index="[::-1, ::-1]")
    taken = script.call(name, lambda x, **_: x[index], x, index=write_index(index))
    return script.finish(script.call("mean", np.mean, taken))


def test_indices_are_named_in_the_notation_of_python() -> None:
    explanation = _explain(_index(np.s_[:, -1]), _index(np.s_[:, :1], "StridedSlice"))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert explanation.sentence.startswith(f"loss: from tensors with the same numbers A computes x[:, -1] in {FILE}:")
    assert f", and B x[:, :1] in {FILE}:" in explanation.sentence


@pytest.mark.parametrize(
    ("index", "name"), [(np.s_[:, -1], "getitem"), (np.s_[..., 2:], "StridedSlice"), (np.s_[:, 2], "select")]
)
def test_equal_indices_of_other_notation_are_not_blamed(index: Any, name: str) -> None:
    explanation = _explain(_index(np.s_[:, -1]), _index(index, name, is_reversed=True))
    assert explanation is not None
    assert not explanation.confirmed
    assert "are not recorded differ; before, B computes x[::-1, ::-1] in " in explanation.sentence
    assert _explain(_index(np.s_[:, -1]), _index(index, name)) is None


def test_a_broadcast_that_only_one_script_computes_is_named() -> None:
    """B subtracts [8] from [8, 1]."""
    outputs, targets = LOGITS[:, :1], LOGITS[:, 1]

    def square(has_axis: bool) -> OperationTrace:
        script = Script(outputs=outputs if has_axis else outputs[:, 0], targets=targets)
        difference = script.call("sub", np.subtract, script.inputs["outputs"], script.inputs["targets"])
        return script.finish(script.call("square", lambda x: np.mean(x**2), difference))

    explanation = _explain(square(has_axis=False), square(has_axis=True))
    assert explanation is not None
    assert explanation.confirmed
    assert explanation.cause == "broadcast_in_loss"
    assert "[8, 1] and [8] give [8, 8] in B, by broadcasting, in sub" in explanation.sentence


def test_targets_that_a_loss_function_broadcasts_are_named() -> None:
    """The targets of B are [8, 8], so that the result is as large as they are."""
    outputs = LOGITS[:, :1]

    def compute(is_broadcast: bool) -> OperationTrace:
        script = Script(outputs=outputs, targets=LOGITS[:, 1:2] + (LOGITS[:, 2] if is_broadcast else 0))
        x, y = script.inputs["outputs"], script.inputs["targets"]
        if is_broadcast:
            losses = script.call("mse_loss", lambda x, y: (x - y) ** 2, x, y)
        else:
            losses = script.call("Square", np.square, script.call("Sub", np.subtract, x, y))
        return script.finish(script.call("mean", np.mean, losses))

    explanation = _explain(compute(is_broadcast=False), compute(is_broadcast=True))
    assert explanation is not None
    assert explanation.cause == "broadcast_in_loss"
    assert "[8, 1] and [8, 8] give [8, 8] in B, by broadcasting, in mse_loss" in explanation.sentence


def test_operations_that_change_the_order_are_named() -> None:
    """B exchanges the axes before it flattens."""

    def flatten(axes: tuple[int, int]) -> OperationTrace:
        script = Script(x=LOGITS)
        moved = script.call("permute", lambda x: np.transpose(x, axes), script.inputs["x"])
        flat = script.call("reshape", np.ravel, moved)
        return script.finish(script.call("max", np.max, script.name("layer/head/input", flat)))

    pair = make_pair(flatten((0, 1)), flatten((1, 0)))
    explanation = explain_operations(pair, "head", "layer/head/input", "layer/head/input")
    assert explanation is not None
    assert explanation.sentence.startswith("head: the same numbers are in another order: A computes permute in ")
    assert " and B computes permute in " in explanation.sentence
    assert not explanation.confirmed


def test_a_loss_function_is_named_though_the_form_of_its_labels_differs() -> None:
    def lose(factor: float, labels: np.ndarray) -> OperationTrace:
        script = Script(x=LOGITS, y=labels)
        classes = script.call("cast", lambda y: y.astype(np.int64).ravel(), script.inputs["y"])
        loss = script.call("ctc_loss", lambda x, y: factor * np.sum(x), script.inputs["x"], classes)
        trace = script.finish(loss)
        trace["tensors"][trace["operations"][0]["outputs"][0]]["dtype"] = "int64"
        return trace

    explanation = _explain(lose(1.0, np.arange(8)), lose(2.0, np.arange(4)[:, None]))
    assert explanation is not None
    assert ": from tensors with the same numbers A computes ctc_loss in " in explanation.sentence


def _score(weight: np.ndarray, name: str = "linear", is_named: bool = False) -> OperationTrace:
    """Compute the mean of what another model returns for the logits. is_named: whether the record has its weight."""
    script = _script()
    logits, tensor = script.name("weight/logits", script.inputs["logits"]), to_tensor(weight)
    tensor = script.name("weight/other", tensor) if is_named else tensor
    scores = script.call(name, np.matmul, logits, tensor)
    return script.finish(script.call("mean", np.mean, scores))


def test_weights_of_another_model_are_no_other_operation() -> None:
    weights = np.random.default_rng(2).normal(size=(2, 3, 2))
    explanation = _explain(_score(weights[0]), _score(weights[1]))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("other_state_of_loss", False)
    assert "a tensor [3, 2] that is not recorded has other numbers" in explanation.sentence
    assert _explain(_score(weights[0]), _score(weights[0])) is None


@pytest.mark.parametrize(
    "other", [{"name": "pow"}, {"is_named": True}, {"weight": np.ones((3, 4))}], ids=["operation", "recorded", "size"]
)
def test_only_weights_that_are_not_recorded_are_left_out(other: dict[str, Any]) -> None:
    weights = np.random.default_rng(2).normal(size=(2, 3, 2))
    explanation = _explain(_score(weights[0]), _score(**{"weight": weights[1], **other}))
    assert explanation is not None
    assert explanation.cause == "operation"


def test_operations_of_a_functional_model_have_their_layer_as_place() -> None:
    """Their line is that of fit."""
    script = Script(x=LOGITS)
    trace = script.finish(script.call("mul", np.multiply, script.inputs["x"], to_tensor(2.0)))
    operation = trace["operations"][0]
    assert locate(operation).startswith(FILE)
    operation["layer"], operation["code"] = "rescaling", "model.fit(x, y)"
    assert locate(operation) == "mul in layer rescaling"
    operation["layer"] = "model"
    assert locate(operation) == "mul"


def test_operations_that_order_numbers_are_added_to_another_explanation() -> None:
    """B exchanges the axes before it flattens."""

    def flatten(axes: tuple[int, int]) -> OperationTrace:
        script = Script(x=LOGITS)
        moved = script.call("permute", lambda x: np.transpose(x, axes), script.inputs["x"])
        return script.finish(script.call("max", np.max, script.name("layer/head/input", moved)))

    pair = make_pair(flatten((0, 1)), flatten((1, 0)))
    explanation = add_lines(Explanation("flatten_order", "other order"), pair, "layer/head/input", "layer/head/input")
    assert explanation.sentence.startswith("other order (A computes permute in ")


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_a_mean_in_place_of_a_sum_is_named_though_a_product_comes_before_it(scale: float) -> None:
    """A sum with a small term equals the sum without it within the tolerance."""

    def compute(is_mean: bool) -> OperationTrace:
        script = _script()
        x = script.name("weight/logits", script.inputs["logits"])
        first = script.call("sum", np.sum, script.call("exp", np.exp, x))
        squares, factor = script.call("square", np.square, x), to_tensor(-0.5 * scale)
        if is_mean:
            second = script.call("mean", np.mean, script.call("mul", np.multiply, squares, factor))
        else:
            second = script.call("mul", np.multiply, script.call("sum", np.sum, squares), factor)
        return script.finish(script.call("add", np.add, first, second))

    pair = make_pair(compute(False), compute(True))
    pair.noise = 1e-9 if scale == 1.0 else pair.noise
    explanation = explain_operations(pair, "loss", LOSS, LOSS)
    if scale == 1.0:
        assert explanation is not None
        assert (explanation.cause, explanation.confirmed) == ("operation", True)
        assert "A computes sum in" in explanation.sentence
        assert "and B mean in" in explanation.sentence
    else:
        assert explanation is None


def test_zeros_to_which_a_script_adds_rows_are_no_missing_operation() -> None:
    """The other script needs none, and gathers other rows."""
    rows = {"A": [0, 1, 2, 2, 4, 6, 7, 7], "B": [0, 1, 2, 3, 4, 6, 7, 7]}

    def add_rows(name: str, has_zeros: bool) -> OperationTrace:
        script = Script(x=LOGITS, rows=np.array(rows[name], np.float64))
        x, indices = script.inputs["x"], script.inputs["rows"]
        taken = script.call("gather", lambda x, y: np.asarray(x)[np.asarray(y, int)], x, indices)
        zeros = [script.call("zeros", lambda: np.zeros((8, 3)))] if has_zeros else []
        return script.finish(script.call("sum", lambda *x: np.sum(np.square(x[-1])), *zeros, taken))

    explanation = _explain(add_rows("A", has_zeros=True), add_rows("B", has_zeros=False))
    assert explanation is not None
    assert "compute zeros" not in explanation.sentence


def test_arguments_in_another_order_are_named() -> None:
    """B passes the state of a cell as its input."""
    updates, state = np.random.default_rng(2).normal(size=(2, 8, 3))

    def call_cell(is_exchanged: bool) -> OperationTrace:
        script = Script(updates=updates, state=state)
        x, h = (script.call("mul", np.multiply, x, to_tensor(2.0)) for x in script.inputs.values())
        x, h = (h, x) if is_exchanged else (x, h)
        moved = script.call("GRUCell", lambda x, h: x + 2 * h, script.name("layer/cell/input", x), h)
        return script.finish(script.call("mean", np.mean, moved))

    names = "layer/cell/input", "layer/cell/input"
    explanation = explain_operations(make_pair(call_cell(False), call_cell(True)), "before cell", *names)
    assert explanation is not None
    assert explanation.confirmed
    assert explanation.sentence.startswith("before cell: the same tensors are passed in another order: GRUCell in ")


@pytest.mark.parametrize("takes_part", [True, False])
def test_a_loss_of_a_part_of_the_outputs_is_named(takes_part: bool) -> None:
    """Only one script takes the last time step, and it calls another loss function."""

    def compute(is_last: bool, name: str) -> OperationTrace:
        script = Script(x=np.stack([LOGITS, 2 * LOGITS], 1))
        x = script.name("layer/out/output", script.call("mul", np.multiply, script.inputs["x"], to_tensor(2.0)))
        x = script.call("getitem", lambda x, index: x[:, -1], x, index="[:, -1]") if is_last else x
        squares = script.call(name, np.square if is_last else np.abs, x)
        return script.finish(script.call("mean", np.mean, squares))

    explanation = _explain(compute(not takes_part, "square"), compute(takes_part, "pow"))
    assert explanation is not None
    assert ("takes a part [8, 3] of [8, 2, 3]" in explanation.sentence) or "[:, -1]" in explanation.sentence
