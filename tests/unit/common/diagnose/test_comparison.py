"""Data that the stages of a diagnosis share."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.diagnose.comparison import SideComparison
from common.diagnose.layer_match import LayerMatch
from common.diagnose.observation import Observation, measure_perturbation
from common.map.description import RecordedCall, name_call


def test_parameters_that_b_lacks_are_unpaired() -> None:
    initial = dict.fromkeys(["separable.depthwise.weight", "separable.pointwise.weight", "extra.weight"], np.zeros(2))
    trained = {name: array for name, array in initial.items() if name != "extra.weight"}
    a: Any = SimpleNamespace(states=[SimpleNamespace(weights=initial), SimpleNamespace(weights=initial)])
    b: Any = SimpleNamespace(states=[SimpleNamespace(weights=initial), SimpleNamespace(weights=trained)])
    assert SideComparison(a, b, []).unpaired_parameters == ["extra.weight"]


INPUTS = np.random.default_rng(0).standard_normal((3, 4, 6))
NO_CALL = RecordedCall(None, None)


class TowerProcess:
    """The process of a model that applies the layers of a tower to its inputs, one input after the other."""

    def __init__(self, order: Sequence[int]) -> None:
        self.order = order
        self.computed: list[Any] = []

    def send(self, method: str, *, replacements: Mapping[str, RecordedCall] | None = None, **_: object) -> None:
        """Compute the model."""
        calls = {}
        for index, x in enumerate(INPUTS[list(self.order)]):
            for name in ("first", "second", "third"):
                path, received = name_call(name, index), x
                replacement = (replacements or {}).get(path, NO_CALL)
                x = np.sin((received if replacement.received is None else replacement.received) + 1)
                calls[path] = RecordedCall(received, x)
                x = x if replacement.returned is None else replacement.returned
        counts = dict.fromkeys(("first", "second", "third"), len(self.order))
        observation = Observation([x], [], calls, {}, {}, counts=counts)
        perturbed = measure_perturbation(observation, observation)
        self.computed.append(observation if method == "compute" else perturbed)

    def receive(self) -> Any:
        """Return what the model computed."""
        return self.computed.pop(0)

    def call(self, method: str, **arguments: object) -> Any:
        """Compute the model, and return what it computed."""
        self.send(method)
        return self.receive()


def test_all_layers_that_b_calls_in_another_order_are_left_out() -> None:
    batch = SimpleNamespace(shard=lambda *_: [{}], weight=1)
    run: Any = SimpleNamespace(
        states=[SimpleNamespace(weights={})],
        batches=[batch],
        arguments=SimpleNamespace(framework="torch"),
        config=SimpleNamespace(model=None),
        precision="float64",
    )
    for order, expected in (((0, 1, 2), 9), ((0, 2, 1), 0)):
        comparison = SideComparison(run, run, [])
        vars(comparison)["processes"] = {"a": TowerProcess((0, 1, 2)), "b": TowerProcess(order)}
        vars(comparison)["layers"] = [LayerMatch("linear", name, name, name) for name in ("first", "second", "third")]
        assert len(comparison.evaluation_mode.layers) == expected
