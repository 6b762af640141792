"""Which column of a foreign file holds what: guessed from the names that other programs use, or named by the user."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.errors import UserError

# Lower case, the most telling first.
USUAL = {
    "step": ("step", "steps", "global_step", "train/global_step", "iteration", "iter", "epoch"),
    "loss": (
        "loss", "train_loss_step", "train_loss", "train/loss", "training_loss", "train/epoch_loss", "train_loss_epoch",
    ),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "grad_2.0_norm_total"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate", "lr-adamw", "lr-adam", "lr-sgd"),
    "examples": ("examples", "samples", "train_samples"),
    "tokens": ("tokens", "num_input_tokens_seen", "train_tokens"),
    "seconds": ("seconds", "elapsed", "time"),
    "eval_loss": (
        "eval_loss", "val_loss", "validation_loss", "eval/loss", "validation/loss", "val/loss", "validation/epoch_loss",
    ),
    "eval_accuracy": (
        "eval_accuracy", "val_accuracy", "val_acc", "validation_accuracy", "eval/accuracy", "validation/accuracy",
        "val/acc", "validation/epoch_accuracy",
    ),
}  # fmt: skip


@dataclass
class Table:
    """The rows of a foreign run: where each is, for errors, and its values by column.

    kind: what the file is, in words. unit: what a row's step counts, step or epoch. shift: what is added to it, so that
    the first one is 1.
    """

    kind: str
    rows: list[tuple[str, dict[str, Any]]]
    unit: str = "step"
    shift: int = 0
    notes: list[str] = field(default_factory=list)


def columns_of(where: str, names: Iterable[str], chosen: Mapping[str, str | None]) -> dict[str, str]:
    """The column for each of USUAL that there is one for. chosen: what the user has named.

    Raises UserError where a named one is missing, or where none is the loss.
    """
    found, there = {}, list(names)
    lower = {name.lower(): name for name in reversed(there)}
    for what, usual in USUAL.items():
        if own := chosen.get(what):
            if own not in there:
                raise UserError(f"{where}: columns.{what}={own}: no such column; there are {listed(there)}")
            found[what] = own
        elif name := next((lower[each] for each in usual if each in lower), None):
            found[what] = name
    if "loss" not in found and "eval_loss" not in found:
        raise UserError(f"{where}: no column is known to be the loss; name it with columns.loss=NAME: {listed(there)}")
    return found


def listed(names: list[str], most: int = 20) -> str:
    """Names in a row, the first ones of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:60] for name in names[:most]) + more
