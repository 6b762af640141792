"""Train pairs of the zoo with every strategy: `python -m benchmarks.zoo.every_strategy NAME ...`.

The command prints a table for docs/models.md: the largest relative differences of the losses, and of the norms of the
gradients, from those of the first command. BatchNorm uses the statistics of the global batch, since the replicas would
otherwise compute other curves than a single one.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.zoo.catalog import PAIRS
from benchmarks.zoo.pairs import ZooPair
from benchmarks.zoo.training import DDP, MIRRORED, TWO_REPLICAS, TrainingCommand, compare_curves, train_curves

SERVERS = ("strategy=parameter_server", TWO_REPLICAS, "strategy.max_staleness=0")
COMMANDS = [
    TrainingCommand("torch_impl", ("strategy=single",)),
    TrainingCommand("torch_impl", ("strategy=dp", TWO_REPLICAS)),
    DDP,
    TrainingCommand("torch_impl", ("strategy=allreduce", TWO_REPLICAS)),
    TrainingCommand("torch_impl", ("strategy=zero", TWO_REPLICAS)),
    TrainingCommand("torch_impl", ("strategy=fsdp", TWO_REPLICAS)),
    TrainingCommand("torch_impl", SERVERS),
    TrainingCommand("tf_impl", ("strategy=single",)),
    MIRRORED,
    TrainingCommand("tf_impl", ("strategy=central_storage", TWO_REPLICAS)),
    TrainingCommand("tf_impl", ("strategy=multiworker", TWO_REPLICAS)),
    TrainingCommand("tf_impl", SERVERS),
]
SYNCHRONIZED = {"model.sync_batch_norm": "true"}


def main(names: Sequence[str]) -> None:
    """Train the pairs of these names, and print the table."""
    pairs = {pair.name: pair for pair in PAIRS}
    if unknown := [name for name in names if name not in pairs]:
        sys.exit(f"error: {unknown[0]}: not a pair; the pairs are {', '.join(pairs)}")
    columns = [compare_with_first(pairs[name]) for name in names]
    print(f"| command | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}")
    for command, *cells in zip(COMMANDS, *columns, strict=True):
        print(f"| `{command}` | {' | '.join(cells)} |")


def compare_with_first(pair: ZooPair) -> list[str]:
    """Train a pair with all commands. Return the differences of each from the first, or its error."""
    first, *others = train_curves(replace(pair, task={**pair.task, **SYNCHRONIZED}), COMMANDS)
    if isinstance(first, str):
        return [first] * len(COMMANDS)
    differences = [compare_curves(first, other) if not isinstance(other, str) else other for other in others]
    return ["", *(x if isinstance(x, str) else f"{x[0]:.0e}, {x[1]:.0e}" for x in differences)]


if __name__ == "__main__":
    main(sys.argv[1:])
