"""What a step computes of a batch, and an evaluation of all batches."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import record_function

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.training.strategy import Evaluation

Batch = dict[str, torch.Tensor]


def compute_logits(model: Callable[..., torch.Tensor], batch: Batch, precision: str) -> torch.Tensor:
    """Logits [n, classes], at least float32; precision=bfloat16 computes them under autocast."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "weights")}
    with torch.autocast(next(iter(inputs.values())).device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits: torch.Tensor = model(**inputs)
    return logits if logits.dtype == torch.float64 else logits.float()


def summed_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross-entropy summed over the examples, each times its weight; a scalar."""
    return (cross_entropy(logits, batch["labels"], reduction="none") * batch["weights"].to(logits.dtype)).sum()


def backward(model: Callable[..., torch.Tensor], shard: list[Batch], size: float, precision: str) -> torch.Tensor:
    """Add the gradients of a shard to the parameters', one micro-batch after the other. Returns the shard's loss.

    size: of the global batch, whose mean loss is the sum of its shards'.
    """
    losses = []
    for part in shard:
        with record_function("forward"):
            loss = summed_loss(compute_logits(model, part, precision), part) / size
        with record_function("backward"):
            loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def evaluation_sums(model: Callable[..., torch.Tensor], shard: list[Batch], precision: str) -> torch.Tensor:
    """Summed loss and number of correct answers of a shard, float64 [2]."""
    sums = []
    for part in shard:
        logits = compute_logits(model, part, precision)
        correct = (logits.argmax(-1) == part["labels"]) * part["weights"]
        sums.append(torch.stack([summed_loss(logits.double(), part), correct.sum()]))
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
    sums, count = torch.zeros(2, dtype=torch.float64), 0
    for batch in batches:
        part = sums_of(batch)
        sums = sums.to(part.device) + part
        count += batch.size
    all_reduce(sums)
    summed_loss, correct = sums.tolist()
    return Evaluation(summed_loss, correct, count)
