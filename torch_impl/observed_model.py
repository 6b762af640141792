"""The model of a run, for common.diagnose: the arrays of every layer, the losses and the gradients of a step.

common.diagnose compares two runs, A and B, and starts a process for each. The process builds an ObservedModel and calls
the methods whose names it receives. All weights and gradients are numpy arrays with PyTorch's names and shapes.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from common.config.compose import load_config
from common.config.saved_config import CONFIG
from common.data.batches import Arrays
from common.data.transforms.trace import Trace, trace_transforms
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import perturb_calls
from common.diagnose.observation import Observation, PerturbedObservation, measure_perturbation
from common.map.description import RecordedCall
from common.run.inputs import open_inputs
from common.training.planned_batches import find_batch
from torch_impl.batches import to_tensors
from torch_impl.device import select_replica_devices
from torch_impl.forward_trace import ForwardTrace
from torch_impl.models import build_model, trainable_parameters
from torch_impl.models.weights import load_weights, read_weights
from torch_impl.step import MicroBatch, backward, compute_outputs, sum_losses
from torch_impl.task import build_task_functions


class ObservedModel:
    """The model and the task of a prepared run directory."""

    def __init__(self, run_dir: str) -> None:
        """Build the model of a run directory."""
        self.config = config = load_config(Path(run_dir) / CONFIG)
        self.inputs = open_inputs(config, Path(run_dir))
        self.precision = config.train.precision
        self.device = select_replica_devices(1, config.train.device)[0]
        self.model = build_model(config, self.inputs.initial).to(self.device)
        self.task = build_task_functions(config.task, self.inputs.initial.hf_config)
        self.layer_paths = {name: name.rpartition(".")[0] for name in read_weights(self.model)}

    def layers(self) -> dict[str, str]:
        """Return the path of the layer of each parameter and moving statistic, by the parameter's name."""
        return self.layer_paths

    def classes(self) -> dict[str, str]:
        """Return the class of each layer with its module, such as torch.nn.modules.linear.Linear, by the path."""
        return {path: f"{type(layer).__module__}.{type(layer).__name__}" for path, layer in self.model.named_modules()}

    def transforms(self, step: int) -> Trace:
        """Return the examples of a global batch before the transforms of the data, and after each of them."""
        return trace_transforms(find_batch(self.config, self.inputs.cache.train, step))

    def compute(
        self,
        weights: Mapping[str, np.ndarray],
        shard: Sequence[Arrays],
        weight: float,
        training: bool,
        paths: Collection[str],
        replacements: Mapping[str, RecordedCall] | None = None,
    ) -> Observation:
        """Compute a shard.

        Args:
            weights: The weights to set first, by name.
            shard: The micro-batches.
            weight: The total weight of the global batch: the divisor of the summed losses.
            training: Whether the model is in training mode.
            paths: The paths of the layers whose calls are returned.
            replacements: Inputs and outputs that replace those of layers in the first micro-batch, by the layer's path
                in this model: the calls of the other model's layers, or of this model with noise. With replacements, no
                gradients are computed.
        """
        self._prepare(weights, training)
        losses, outputs, calls, unflattened_shapes, reshaped_shapes, counts = [], [], {}, {}, {}, {}
        for index, micro_batch in enumerate(to_tensors(list(shard), self.device)):
            if index == 0:
                with ForwardTrace(self.model, replacements, paths) as trace:
                    batch_outputs, batch_losses = self._forward(micro_batch)
                calls, unflattened_shapes = trace.calls, trace.unflattened_shapes
                reshaped_shapes, counts = trace.reshaped_shapes, dict(trace.counts)
            else:
                batch_outputs, batch_losses = self._forward(micro_batch)
            if replacements is None:
                (sum_losses(self.task, batch_outputs, micro_batch).sum() / weight).backward()
            losses.append(batch_losses.detach().cpu().numpy())
            outputs.append(batch_outputs.detach().cpu().numpy())
        self.observation = Observation(
            outputs, losses, calls, unflattened_shapes, self._read_gradients(), reshaped_shapes, counts
        )
        return self.observation

    def compute_perturbed(
        self,
        weights: Mapping[str, np.ndarray],
        shard: Sequence[Arrays],
        weight: float,
        training: bool,
        layers: Sequence[LayerMatch] | None = None,
    ) -> PerturbedObservation:
        """Compute the shard of the last `compute` on slightly perturbed weights, and measure the differences.

        Args:
            weights: The perturbed weights to set first, by name.
            shard: As in `compute`.
            weight: As in `compute`.
            training: As in `compute`.
            layers: The pairs of layers whose arrays are perturbed, too; this model must be A's. Each of its layers then
                receives and returns the arrays of the last `compute` plus noise. None perturbs no arrays.
        """
        original = self.observation
        replacements = None if layers is None else perturb_calls(layers, original, seed=len(weights))
        perturbed = self.compute(weights, shard, weight, training, original.calls.keys(), replacements)
        self.observation = original
        return measure_perturbation(original, perturbed)

    def gradients(
        self, weights: Mapping[str, np.ndarray], shard: Sequence[Arrays], weight: float
    ) -> dict[str, np.ndarray]:
        """Return the gradients of the shard's summed losses divided by `weight`, computed as in training."""
        self._prepare(weights, training=True)
        backward(self.model, self.task, to_tensors(list(shard), self.device), weight, self.precision)
        return self._read_gradients()

    def losses(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the losses [n] of any outputs [n, ...], such as the outputs of the other model."""
        labels = labels.astype(np.int64) if labels.dtype.kind in "iu" else labels
        losses: np.ndarray = self.task.losses(torch.from_numpy(outputs), torch.from_numpy(labels)).detach().numpy()
        return losses

    def _prepare(self, weights: Mapping[str, np.ndarray], training: bool) -> None:
        """Set the weights and the mode of the model, and clear its gradients."""
        load_weights(self.model, dict(weights))
        self.model.train(training)
        self.model.zero_grad()

    def _read_gradients(self) -> dict[str, np.ndarray]:
        return {
            name: np.zeros(parameter.shape)
            if parameter.grad is None
            else parameter.grad.to_dense().cpu().numpy().copy()
            for name, parameter in trainable_parameters(self.model).items()
        }

    def _forward(self, micro_batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs [n, ...] and the loss of each example [n]."""
        outputs = compute_outputs(self.model, micro_batch, self.precision)
        return outputs, self.task.losses(outputs, micro_batch["labels"])
