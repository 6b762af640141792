"""What a step computes of a batch, and an evaluation of all batches."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.profiler import record_function

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.training.strategy import Evaluation
from torch_impl.task import TaskFunctions

MicroBatch = dict[str, torch.Tensor]


def compute_outputs(model: Callable[..., torch.Tensor], batch: MicroBatch, precision: str) -> torch.Tensor:
    """The model's outputs [n, ...], at least float32; precision=bfloat16 computes them under autocast."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "weights")}
    with torch.autocast(next(iter(inputs.values())).device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        outputs: torch.Tensor = model(**inputs)
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def sum_losses(task: TaskFunctions, outputs: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """The losses of the examples, each times its weight; a scalar."""
    return (task.losses(outputs, batch["labels"]) * batch["weights"].to(outputs.dtype)).sum()


def backward(
    model: Callable[..., torch.Tensor], task: TaskFunctions, shard: list[MicroBatch], weight: float, precision: str
) -> torch.Tensor:
    """Add the gradients of a shard to the parameters', one micro-batch after the other. Returns the shard's loss.

    weight: of the global batch, whose mean loss is the sum of its shards'.
    """
    losses = []
    for part in shard:
        with record_function("forward"):
            loss = sum_losses(task, compute_outputs(model, part, precision), part) / weight
        with record_function("backward"):
            loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def compute_evaluation_sums(
    model: Callable[..., torch.Tensor], task: TaskFunctions, shard: list[MicroBatch], precision: str
) -> torch.Tensor:
    """The summed loss and the summed metric of a shard, float64 [2]."""
    sums = []
    for part in shard:
        outputs = compute_outputs(model, part, precision).double()
        metric = task.metric(outputs, part["labels"]) * part["weights"]
        sums.append(torch.stack([sum_losses(task, outputs, part), metric.sum()]))
    return torch.stack(sums).sum(0)


def seed_dropout(config: Config, step: int, replica: int = 0) -> None:
    """Seed dropout for update `step`, so that its masks do not depend on the steps before it."""
    torch.manual_seed(int(np.random.SeedSequence([config.train.seed, step, replica]).generate_state(1, np.uint64)[0]))


@torch.no_grad()
def evaluate(
    batches: Iterable[GlobalBatch],
    sums_of: Callable[[GlobalBatch], torch.Tensor],
    all_reduce: Callable[[torch.Tensor], object] = lambda sums: None,
) -> Evaluation:
    """Evaluate every batch. sums_of: a rank's `evaluation_sums` of one. all_reduce: sums over ranks, in place."""
    sums, weight, count = torch.zeros(2, dtype=torch.float64), 0.0, 0
    for batch in batches:
        part = sums_of(batch)
        sums = sums.to(part.device) + part
        weight += batch.weight
        count += batch.size
    all_reduce(sums)
    summed_loss, summed_metric = sums.tolist()
    return Evaluation(summed_loss, summed_metric, weight, count)
