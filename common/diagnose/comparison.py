"""The comparison of two runs: data that its stages share, each computed when the first stage asks for it.

A is the reference run of a diagnosis, and B the run that is compared with it. A stage compares one part of their
training, such as the gradients. A process for each run holds the run's model and computes what a stage asks for.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from types import TracebackType

import numpy as np

from common.config.models import CustomModelSettings
from common.config.strategies import PACKAGES
from common.diagnose.drift import RoundingDrift
from common.diagnose.findings import DIFFERS, EQUAL, NOT_COMPARED, Stage
from common.diagnose.layer_match import LayerMatch, match_layers
from common.diagnose.layout_conversion import (
    convert_calls,
    list_comparable_calls,
    list_crossed_layers,
    select_replacements,
)
from common.diagnose.model_observations import ModelObservations
from common.diagnose.rounding import MACHINE_EPSILON, measure_noise, perturb, precision_of_weights
from common.diagnose.side_run import SideRun
from common.map.array_differences import compute_norm
from common.map.description import drop_call_number
from common.map.gradient_comparison import SMALL_GRADIENT_SHARE
from common.map.side import Side, receive_all
from common.map.unpaired_layers import UnpairedLayer

NEGLIGIBLE_GRADIENT = 1e-10  # norm, relative to the largest gradient's, below which only rounding errors remain

Gradients = Mapping[str, np.ndarray]  # by parameter name, in PyTorch's layout


class SideComparison:
    """Runs A and B, the processes that compute on their models, and the stages that are finished so far.

    The class is a context manager. The processes start when a stage first needs them, and end with the context.
    """

    def __init__(self, a: SideRun, b: SideRun, stages: list[Stage]) -> None:
        self.a, self.b, self.stages = a, b, stages
        self._exit_stack = ExitStack()

    def __enter__(self) -> "SideComparison":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit_stack.__exit__(kind, error, traceback)

    @property
    def precision(self) -> str:
        """Precision of the comparison: the precision in which A trained."""
        return self.a.precision

    @property
    def runs(self) -> dict[str, SideRun]:
        """Both runs, by side: "a" or "b"."""
        return {"a": self.a, "b": self.b}

    @cached_property
    def processes(self) -> dict[str, Side]:
        """Process that holds the model of each run, by side: "a" or "b"."""
        processes = {
            name: self._exit_stack.enter_context(
                Side(PACKAGES[run.arguments.framework], "observed_model", run.arguments.python, run.config.train.device)
            )
            for name, run in self.runs.items()
        }
        for name, run in self.runs.items():
            processes[name].send("build", run_dir=str(run.directory))
        receive_all(*processes.values())
        return processes

    @cached_property
    def layers(self) -> list[LayerMatch]:
        """Pairs of a layer of A and the layer of B that holds the same parameters."""
        layers_a, layers_b = (process.call("layers") for process in self.processes.values())
        return match_layers(self.a, self.b, layers_a, layers_b)

    @cached_property
    def unpaired(self) -> dict[str, list[UnpairedLayer]]:
        """Layers with variables that the other side's model lacks, by side: "a" or "b"."""
        frameworks = {name: run.arguments.framework for name, run in self.runs.items()}
        if not isinstance(self.a.config.model, CustomModelSettings) or len({*frameworks.values()}) == 1:
            return {"a": [], "b": []}
        unpaired = self.a.prepared.initial.hf_config["unpaired"]
        return {name: unpaired.get(framework, []) for name, framework in frameworks.items()}

    @property
    def unpaired_names(self) -> set[str]:
        """The names of the variables of the layers in `unpaired`."""
        return {name for layers in self.unpaired.values() for layer in layers for name in layer["variables"]}

    @property
    def unpaired_parameters(self) -> list[str]:
        """The names of A's weights that B lacks."""
        return [name for name in self.a.states[-1].weights if name not in self.b.states[-1].weights]

    @cached_property
    def evaluation_mode(self) -> ModelObservations:
        """The observations of both models in evaluation mode."""
        return self._observe_models(training=False)

    @cached_property
    def training_mode(self) -> ModelObservations:
        """The observations of both models in training mode."""
        return self._observe_models(training=True)

    @cached_property
    def losses_of_b(self) -> np.ndarray:
        """The losses [n] that B computes from A's outputs."""
        outputs = self.evaluation_mode.outputs_of_a
        losses: np.ndarray = self.processes["b"].call("losses", outputs=outputs, labels=self.labels)
        return losses

    @property
    def labels(self) -> np.ndarray:
        """Labels of the first micro-batch of A."""
        return self.evaluation_mode.batch["labels"]

    @property
    def gradients(self) -> Gradients:
        """A's gradients in the first compared step, by parameter."""
        return self.training_mode.a.gradients

    @cached_property
    def gradient_noise(self) -> dict[str, float]:
        """Norm of the rounding error of each of A's gradients, at least one machine epsilon of the gradient's norm.

        The norm of a tiny gradient counts as SMALL_GRADIENT_SHARE of the norm of A's largest gradient.
        """
        norms = {name: compute_norm(gradient) for name, gradient in self.gradients.items()}
        smallest_norm = SMALL_GRADIENT_SHARE * max(norms.values(), default=0.0)
        noise = {}
        for name, gradient in self.gradients.items():
            norm = max(norms[name], smallest_norm)
            measured = measure_noise(gradient, self.training_mode.a_perturbed.gradients[name], min_norm=norm)
            noise[name] = norm * max(MACHINE_EPSILON[self.precision], measured)
        return noise

    @cached_property
    def noisy_parameters(self) -> set[str]:
        """Parameters of A whose gradients hold rounding errors only, such as the bias of an attention's key.

        Adam divides a gradient by its own size, so that these parameters move at random and are not compared.
        """
        norms = {name: compute_norm(gradient) for name, gradient in self.gradients.items()}
        return {name for name, norm in norms.items() if norm < NEGLIGIBLE_GRADIENT * max(norms.values())}

    @cached_property
    def drift(self) -> RoundingDrift:
        """The distance that rounding alone may move A's weights."""
        return RoundingDrift(self.a, self.gradients, self.gradient_noise)

    @property
    def earlier_stage_differs(self) -> bool:
        """Return whether a difference begins at a finished stage; the stage "config" does not count."""
        return any(stage.verdict == DIFFERS for stage in self.stages if stage.name != "config")

    def stage(self, name: str) -> Stage:
        """Return the finished stage of this name."""
        return next(stage for stage in self.stages if stage.name == name)

    def has_difference(self, *names: str) -> bool:
        """Check whether one of the finished stages of these names differs, or inherits an earlier difference."""
        return any(stage.verdict not in (EQUAL, NOT_COMPARED) for stage in self.stages if stage.name in names)

    def _observe_models(self, training: bool) -> ModelObservations:
        """Compute both models on A's first global batch, with A's initial weights.

        The whole batch is one shard. A computes it three times: unchanged, with weights moved by rounding, and layer by
        layer, with the weights and the input of each layer moved by rounding. B computes it unchanged, and layer by
        layer, with A's array as the input of each layer. A "call" is the input and the output of a layer. A layer with
        a call in `replacements` receives and returns these arrays instead of its own.
        """
        weights, batch = self.a.states[0].weights, self.a.batches[0]
        shard = batch.shard(0, 1)
        inputs = {"shard": shard, "weight": batch.weight, "training": training}
        process_a, process_b = self.processes["a"], self.processes["b"]
        weights_b = _select_weights(weights, self.b.states[0].weights)

        unpaired = {name: [layer["path"] for layer in layers] for name, layers in self.unpaired.items()}
        paths_a = [path for layer in self.layers for path in layer.paths_a] + unpaired["a"]
        paths_b = [path for layer in self.layers for path in layer.paths_b] + unpaired["b"]
        process_a.send("compute", weights=weights, paths=paths_a, **inputs)
        process_b.send("compute", weights=weights_b, paths=paths_b, **inputs)
        a, b = receive_all(process_a, process_b)
        layers = list_comparable_calls(self.layers, a, b)

        process_a.send("compute_perturbed", weights=_perturb_weights(weights, self.precision), **inputs)
        compute_b = partial(process_b.send, "compute", weights=weights_b, paths=paths_b, **inputs)
        compute_b(replacements=select_replacements(layers, convert_calls(layers, a, b), b))
        a_perturbed, b_isolated = receive_all(process_a, process_b)
        # If B calls a layer in another order than A, the layer must not get A's arrays: these arrays may hide the order
        # in which B calls a later layer.
        while crossed := list_crossed_layers(layers, a, b_isolated):
            layers = [layer for layer in layers if drop_call_number(layer.path_b) not in crossed]
            compute_b(replacements=select_replacements(layers, convert_calls(layers, a, b), b))
            b_isolated = process_b.receive()
        perturbed_weights = _perturb_weights(weights, precision_of_weights(self.precision))
        a_isolated = process_a.call("compute_perturbed", weights=perturbed_weights, layers=layers, **inputs)
        return ModelObservations(
            a=a,
            a_perturbed=a_perturbed,
            a_isolated=a_isolated,
            b=b,
            b_isolated=b_isolated,
            layers=layers,
            unpaired_a=unpaired["a"],
            unpaired_b=unpaired["b"],
            batch=shard[0],
            weights=weights,
            precision=self.precision,
            is_one_framework=self.a.arguments.framework == self.b.arguments.framework,
        )


def _perturb_weights(weights: Mapping[str, np.ndarray], precision: str) -> dict[str, np.ndarray]:
    epsilon = MACHINE_EPSILON[precision]
    return {name: perturb(array, epsilon, seed) for seed, (name, array) in enumerate(weights.items())}


def _select_weights(weights: Mapping[str, np.ndarray], weights_b: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights for B's model: A's weights, but B's for parameters that A lacks or has in another shape."""
    return {
        name: weights[name] if name in weights and weights[name].shape == array.shape else array
        for name, array in weights_b.items()
    }
