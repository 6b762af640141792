"""A run's model, computed step by step for common.diagnose: what every layer, the loss and the gradients are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from common.config.compose import load_config
from common.data.batches import Arrays
from common.diagnose.observation import Observation
from common.map.description import Call
from common.run.inputs import open_inputs
from torch_impl.batches import to_tensors
from torch_impl.forward_trace import ForwardTrace
from torch_impl.models import build_model, trainable_parameters
from torch_impl.models.weights import load_weights, read_weights
from torch_impl.step import MicroBatch, backward, compute_outputs, sum_losses
from torch_impl.task import build_task_functions


class ObservedModel:
    """The model and the losses of a run directory that is prepared."""

    def __init__(self, run_dir: str) -> None:
        config = load_config(Path(run_dir) / "config.yaml")
        self.precision = config.train.precision
        self.model = build_model(config, open_inputs(config, Path(run_dir)).initial)
        self.task = build_task_functions(config.task)
        self.paths = {name: name.rpartition(".")[0] for name in read_weights(self.model)}

    def layers(self) -> dict[str, str]:
        """The layer of each parameter and moving statistic, by the parameter's name."""
        return self.paths

    def compute(
        self,
        weights: Mapping[str, np.ndarray],
        shard: Sequence[Arrays],
        weight: float,
        training: bool,
        given: Mapping[str, Call] | None = None,
    ) -> Observation:
        """A shard with these weights. weight: of the global batch. given: see Trace; the first micro-batch's."""
        self._prepare(weights, training)
        losses, outputs, calls, flattened = [], [], {}, {}
        for index, part in enumerate(to_tensors(list(shard), torch.device("cpu"))):
            if index == 0:
                with ForwardTrace(self.model, given) as trace:
                    computed, loss = self._forward(part)
                calls, flattened = trace.calls, trace.flattened
            else:
                computed, loss = self._forward(part)
            if given is None:
                (sum_losses(self.task, computed, part) / weight).backward()
            losses.append(loss.detach().numpy())
            outputs.append(computed.detach().numpy())
        return Observation(outputs, losses, calls, flattened, self._gradients())

    def gradients(
        self, weights: Mapping[str, np.ndarray], shard: Sequence[Arrays], weight: float
    ) -> dict[str, np.ndarray]:
        """Of the shard's part of the mean loss over the global batch, as a training step computes them."""
        self._prepare(weights, training=True)
        backward(self.model, self.task, to_tensors(list(shard), torch.device("cpu")), weight, self.precision)
        return self._gradients()

    def losses(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The losses [n] of any outputs."""
        labels = labels.astype(np.int64) if labels.dtype.kind in "iu" else labels
        found: np.ndarray = self.task.losses(torch.from_numpy(outputs), torch.from_numpy(labels)).detach().numpy()
        return found

    def _prepare(self, weights: Mapping[str, np.ndarray], training: bool) -> None:
        load_weights(self.model, dict(weights))
        self.model.train(training)
        self.model.zero_grad()

    def _gradients(self) -> dict[str, np.ndarray]:
        return {
            name: np.zeros(each.shape) if each.grad is None else each.grad.to_dense().numpy().copy()
            for name, each in trainable_parameters(self.model).items()
        }

    def _forward(self, part: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = compute_outputs(self.model, part, self.precision)
        return outputs, self.task.losses(outputs, part["labels"])
