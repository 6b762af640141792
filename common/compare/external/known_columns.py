"""Names that other programs give to the columns of a curve."""

from collections.abc import Iterable, Mapping

from common.errors import UserError

GUESSED = "auto"  # value of columns.METRIC if the user names no column
# For each metric, the lower-case names of its column in other programs, the most specific first.
KNOWN_COLUMNS = {
    "step": ("step", "steps", "global_step", "train/global_step", "iteration", "iter", "_step", "num_updates", "epoch"),
    "loss": (
        "loss", "train_loss_step", "train_loss", "train/loss", "training_loss", "train/batch_loss", "batch_loss",
        "train/epoch_loss", "epoch_loss", "train_loss_epoch", "loss/train",
    ),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "grad_2.0_norm_total", "gnorm"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate", "lr-adamw", "lr-adam", "lr-sgd"),
    "examples": ("examples", "samples", "train_samples"),
    "tokens": ("tokens", "num_input_tokens_seen", "train_tokens"),
    "seconds": ("seconds", "elapsed", "time", "_runtime"),
    "eval_loss": (
        "eval_loss", "val_loss", "valid_loss", "validation_loss", "eval/loss", "validation/loss", "val/loss",
        "validation/evaluation_loss_vs_iterations", "validation/epoch_loss", "loss/val",
    ),
    "eval_accuracy": (
        "eval_accuracy", "val_accuracy", "val_acc", "validation_accuracy", "eval/accuracy", "validation/accuracy",
        "val/acc", "validation/evaluation_accuracy_vs_iterations", "validation/epoch_accuracy",
    ),
}  # fmt: skip


def match_columns(
    path: str, names: Iterable[str], chosen_columns: Mapping[str, str | None], is_only_file: bool = True
) -> dict[str, str]:
    """Match the columns of a file to metrics.

    Args:
        path: The file, for error messages.
        names: The columns of the file.
        chosen_columns: The column of each metric: a name, GUESSED, or None if the metric is not to be read.
        is_only_file: Whether the user names no other file. If a file among several lacks a chosen column, the known
            names are searched instead.

    Returns:
        The column of each metric of KNOWN_COLUMNS that the file has.

    Raises:
        UserError: A column that the user named is missing, or no column is known to be the loss.
    """
    columns: dict[str, str] = {}
    available = list(names)
    by_lower_name = {name.lower(): name for name in reversed(available)}
    for metric, known_names in KNOWN_COLUMNS.items():
        chosen = chosen_columns.get(metric, GUESSED)
        if chosen is None:
            continue
        if chosen in available:
            columns[metric] = chosen
        elif chosen != GUESSED and is_only_file:
            raise UserError(f"{path}: columns.{metric}={chosen}: no such column; use one of {format_names(available)}")
        elif known := next((by_lower_name[name] for name in known_names if name in by_lower_name), None):
            columns[metric] = known
    if "loss" not in columns and "eval_loss" not in columns:
        chosen = chosen_columns.get("loss", GUESSED)
        problem = "no column is known to be the loss" if chosen in (None, GUESSED) else f"no column {chosen}"
        raise UserError(f"{path}: {problem}; name the loss with columns.loss=NAME: {format_names(available)}")
    return columns


def format_names(names: list[str], limit: int = 20) -> str:
    """Format names as a list; only the first `limit` of many."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(name[:60] for name in names[:limit]) + more
