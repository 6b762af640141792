"""The computation of one training step, and of an evaluation over all batches.

A replica computes its shard of a global batch as one micro-batch or more. The weight of an example is its weight in the
loss. Rows that fill up a batch have the weight 0.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import numpy as np
import torch
from torch.nn import Parameter
from torch.profiler import record_function

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.metrics.predictions import PREDICTION_PLACES, collect_predictions
from common.training.strategy import Evaluation
from torch_impl.float64 import keep_float64
from torch_impl.predictions import append_predictions
from torch_impl.task import PerExample, TaskFunctions

# Arrays of a micro-batch that the model does not read
NOT_INPUTS = ("labels", "weights", "batch_places", *PREDICTION_PLACES)
MicroBatch = dict[str, torch.Tensor]  # inputs, labels and weights by name; a shard is a list of micro-batches


def compute_outputs(model: Callable[..., torch.Tensor], batch: MicroBatch, precision: str) -> torch.Tensor:
    """Return the model's outputs [n, ...], at least float32. For precision=bfloat16 autocast computes them."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in NOT_INPUTS}
    with torch.autocast(next(iter(inputs.values())).device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        outputs: torch.Tensor = model(**inputs)
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def compute_values(task: TaskFunctions, function: PerExample, outputs: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """Return the losses or the metric of the examples of a micro-batch, [n] or [n, outputs].

    Args:
        task: The functions of the task.
        function: The function to apply: `task.losses` or `task.metric`.
        outputs: The outputs of the model.
        batch: The micro-batch.
    """
    if task.gather is None:
        return function(outputs, batch["labels"])
    # The index of each row in the global batch. A row that only fills up the batch gets any index: its weight is 0.
    rows = (batch["batch_places"] == torch.arange(len(outputs), device=outputs.device)[:, None]).int().argmax(1)
    return function(task.gather(outputs, batch["batch_places"]), batch["labels"])[rows]


def sum_losses(task: TaskFunctions, outputs: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """Return the sum of the examples' losses, each multiplied by the example's weight: a scalar, or [outputs]."""
    return (compute_values(task, task.losses, outputs, batch) * batch["weights"].to(outputs.dtype)).sum(0)


def backward(
    model: Callable[..., torch.Tensor],
    task: TaskFunctions,
    shard: list[MicroBatch],
    loss_divisor: float,
    precision: str,
) -> torch.Tensor:
    """Add the gradients of a shard to `parameter.grad` of all parameters, one micro-batch after the other.

    Args:
        model: The model, in training mode.
        task: The functions of the task.
        shard: The micro-batches of this replica.
        loss_divisor: The divisor of the sum of losses, `GlobalBatch.weight`.
        precision: The config key `train.precision`.

    Returns:
        The shard's part of the mean loss over the global batch: the parts of all shards add up to the mean. If there
        are several outputs, there is a part for each output, multiplied by the weight of the output, [outputs].
    """
    losses = []
    for micro_batch in shard:
        with record_function("forward"):
            loss = sum_losses(task, compute_outputs(model, micro_batch, precision), micro_batch) / loss_divisor
        # In the backward pass, activation checkpointing computes layers again.
        with record_function("backward"), keep_float64() if precision == "float64" else nullcontext():
            loss.sum().backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum(0)


def collect_gradients(parameters: Iterable[Parameter]) -> list[torch.Tensor]:
    """Return the gradients of parameters after backward. If the loss does not depend on a parameter, it gets zeros."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    return gradients


def compute_evaluation_sums(
    model: Callable[..., torch.Tensor], task: TaskFunctions, shard: list[MicroBatch], precision: str
) -> torch.Tensor:
    """Return the weighted sums of losses and metrics over a shard, float64 [2], or [2 * outputs].

    The predictions for the examples follow, flat, if the global batch asks for them.
    """
    sums = []
    for micro_batch in shard:
        outputs = compute_outputs(model, micro_batch, precision).double()
        metric = compute_values(task, task.metric, outputs, micro_batch) * micro_batch["weights"]
        batch_sums = torch.stack([sum_losses(task, outputs, micro_batch), metric.sum(0)]).flatten()
        sums.append(append_predictions(batch_sums, outputs, micro_batch, task.predict_classes))
    return torch.stack(sums).sum(0)


def seed_dropout(config: Config, step: int, replica: int = 0) -> None:
    """Seed PyTorch's own dropout masks for one step, so that they do not depend on the steps before.

    Aligned dropout does not use PyTorch's masks.
    """
    seed = int(np.random.SeedSequence([config.train.seed, step, replica]).generate_state(1, np.uint64)[0])
    # torch.manual_seed would also store a stack trace for each kind of device that this process does not use.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@torch.no_grad()
def evaluate(
    batches: Iterable[GlobalBatch],
    compute_sums: Callable[[GlobalBatch], torch.Tensor],
    all_reduce: Callable[[torch.Tensor], object] = lambda sums: None,
) -> Evaluation:
    """Evaluate every batch.

    Args:
        batches: The global batches.
        compute_sums: A function that returns `compute_evaluation_sums` of this rank's shard of a global batch.
        all_reduce: A function that sums a tensor over the ranks, in place.
    """
    weight: float | np.ndarray = 0.0
    sums, count = torch.zeros((), dtype=torch.float64), 0
    gathered: list[tuple[GlobalBatch, torch.Tensor]] = []  # batches that ask for predictions, and their predictions
    for batch in batches:
        batch_sums, size = compute_sums(batch), 2 * np.size(batch.evaluation_weight)
        sums = sums.to(batch_sums.device) + batch_sums[:size]
        if batch.predictions:
            gathered.append((batch, batch_sums[size:]))
        weight = weight + batch.evaluation_weight
        count += batch.size
    all_reduce(sums)
    summed_loss, summed_metric = sums.cpu().numpy().reshape(2, *np.shape(weight))
    if gathered:
        flat = torch.cat([vector for _, vector in gathered])
        all_reduce(flat)
        summed = flat.cpu().split([len(vector) for _, vector in gathered])
        gathered = [(batch, vector) for (batch, _), vector in zip(gathered, summed, strict=True)]
    predictions = collect_predictions([(batch, vector.numpy()) for batch, vector in gathered])
    return Evaluation(summed_loss, summed_metric, weight, count, predictions)
