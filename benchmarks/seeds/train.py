"""Small training runs of many seeds at once: a network of two layers on scikit-learn's digits, with planted faults.

All seeds train in one process, as a batch of matrix products. Contestants of one seed have the same initial weights and
the same batches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits

from common.statistics.judge import Values

STEPS, BATCH, HIDDEN = 400, 32, 64
TRAINING_EXAMPLES = 1437  # of 1,797; the others validate
MOMENTUM = 0.5
BLOCK = 40  # seeds that train at once; their arrays fit into a cache


@dataclass(frozen=True)
class Contestant:
    """A training run with a fault, or without one."""

    learning_rate: float = 0.1
    weight_decay: float = 5e-3
    wrong_labels: float = 0.0  # share of the training labels that are replaced by random ones
    shards: tuple[int, ...] = ()  # sizes of shards whose mean losses are averaged without their sizes; (): one batch
    delay: int = 0  # updates between the parameters that a gradient is computed with and its own update
    bfloat16: bool = False  # whether matrix products are computed in bfloat16


FAULTS = {
    "learning rate x1.01": Contestant(learning_rate=0.101),
    "learning rate x1.1": Contestant(learning_rate=0.11),
    "weight decay dropped": Contestant(weight_decay=0.0),
    "2 % of the labels wrong": Contestant(wrong_labels=0.02),
    "mean of means, shards of 14, 10, 6 and 2": Contestant(shards=(14, 10, 6, 2)),
    "updates stale by 3, as of 4 workers": Contestant(delay=3),
}


@dataclass(frozen=True)
class TrainedSeeds:
    """Results of a contestant: float64 [seeds, STEPS] for the losses, float64 [seeds] for each metric."""

    losses: np.ndarray
    metrics: dict[str, np.ndarray]


def train(contestant: Contestant, seeds: range) -> TrainedSeeds:
    """Train one run for each seed."""
    blocks = [_train_block(contestant, seeds[start : start + BLOCK]) for start in range(0, len(seeds), BLOCK)]
    metrics = {name: np.concatenate([block.metrics[name] for block in blocks]) for name in blocks[0].metrics}
    return TrainedSeeds(np.concatenate([block.losses for block in blocks]), metrics)


def _train_block(contestant: Contestant, seeds: range) -> TrainedSeeds:
    """Train one run for each seed, all at once."""
    images, labels = _load_digits()
    generators = [np.random.default_rng(seed) for seed in seeds]
    batches = torch.tensor(np.stack([_order_batches(generator) for generator in generators]))  # [seeds, steps, batch]
    parameters = [torch.tensor(np.stack(arrays)) for arrays in zip(*map(_draw_weights, generators), strict=True)]
    targets = torch.tensor(np.stack([_spoil_labels(labels, contestant.wrong_labels, seed) for seed in seeds]))
    history = [[parameter.clone() for parameter in parameters]] * (contestant.delay + 1)
    velocities = [torch.zeros_like(parameter) for parameter in parameters]
    losses = np.empty((len(seeds), STEPS))
    for step in range(STEPS):
        stale = [parameter.clone().requires_grad_() for parameter in history[0]]
        rows = batches[:, step]
        batch_losses = _compute_losses(stale, images[rows], targets.gather(1, rows), contestant.bfloat16)
        losses[:, step] = batch_losses.detach().mean(1).numpy()
        gradients = torch.autograd.grad(_reduce(batch_losses, contestant.shards).sum(), stale)
        for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
            velocity.mul_(MOMENTUM).add_(gradient + contestant.weight_decay * parameter)
            parameter.sub_(contestant.learning_rate * velocity)
        history = [*history[1:], [parameter.clone() for parameter in parameters]]
    return TrainedSeeds(losses, _evaluate(parameters, images[TRAINING_EXAMPLES:], labels[TRAINING_EXAMPLES:]))


def pair_values(reference: TrainedSeeds, contestant: TrainedSeeds) -> dict[str, Values]:
    """Return the metrics of two contestants as the comparison takes them."""
    final = [run.losses[:, -STEPS // 10 :].mean(1) for run in (reference, contestant)]
    metrics = {name: Values(values, contestant.metrics[name]) for name, values in reference.metrics.items()}
    return {"final_loss": Values(*final), **metrics}


def _load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    return images, torch.tensor(digits.target[order])


def _order_batches(generator: np.random.Generator) -> np.ndarray:
    epochs = -(-STEPS * BATCH // TRAINING_EXAMPLES)
    order = np.concatenate([generator.permutation(TRAINING_EXAMPLES) for _ in range(epochs)])
    return order[: STEPS * BATCH].reshape(STEPS, BATCH)


def _draw_weights(generator: np.random.Generator) -> list[np.ndarray]:
    shapes = ((64, HIDDEN), (1, HIDDEN), (HIDDEN, 10), (1, 10))
    bounds = (64**-0.5, 64**-0.5, HIDDEN**-0.5, HIDDEN**-0.5)
    return [
        generator.uniform(-bound, bound, shape).astype(np.float32) for shape, bound in zip(shapes, bounds, strict=True)
    ]


def _spoil_labels(labels: torch.Tensor, share: float, seed: int) -> np.ndarray:
    """Return the labels, a share of which are moved to another class."""
    spoiled = labels.numpy().copy()
    generator = np.random.default_rng(10**6 + seed)
    wrong = generator.choice(TRAINING_EXAMPLES, round(share * TRAINING_EXAMPLES), replace=False)
    spoiled[wrong] = (spoiled[wrong] + generator.integers(1, 10, len(wrong))) % 10
    return spoiled


def _compute_losses(
    parameters: list[torch.Tensor], images: torch.Tensor, labels: torch.Tensor, bfloat16: bool
) -> torch.Tensor:
    """Return the loss of each example, [seeds, examples]."""
    logits = _compute_logits(parameters, images, bfloat16)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.reshape(labels.shape)


def _compute_logits(parameters: list[torch.Tensor], images: torch.Tensor, bfloat16: bool = False) -> torch.Tensor:
    kernel1, bias1, kernel2, bias2 = parameters
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        hidden = torch.relu(torch.matmul(images, kernel1) + bias1)
        return (torch.matmul(hidden, kernel2) + bias2).float()


def _reduce(losses: torch.Tensor, shards: tuple[int, ...]) -> torch.Tensor:
    """Return the loss of each batch: the mean, or the mean of the means of its shards."""
    if not shards:
        return losses.mean(1)
    return torch.stack([shard.mean(1) for shard in losses.split(shards, 1)]).mean(0)


def _evaluate(parameters: list[torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> dict[str, np.ndarray]:
    seeds = len(parameters[0])
    logits = _compute_logits(parameters, images.expand(seeds, -1, -1))
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels.expand(seeds, -1), reduction="none")
    accuracy = (logits.argmax(2) == labels).double().mean(1)
    return {"validation_loss": losses.double().mean(1).numpy(), "accuracy": accuracy.numpy()}
