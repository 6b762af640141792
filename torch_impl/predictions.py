"""Predictions of an evaluation. A sum over the replicas gathers them: each adds 0 for the examples of the others."""

from collections.abc import Callable

import torch

PredictClasses = Callable[[torch.Tensor], torch.Tensor]


def predict_classes(outputs: torch.Tensor) -> torch.Tensor:
    """Return the class with the largest logit at each position of each example, [positions, 1]."""
    return outputs.argmax(-1).to(outputs.dtype).reshape(-1, 1)


def append_predictions(
    sums: torch.Tensor,
    outputs: torch.Tensor,
    batch: dict[str, torch.Tensor],
    predict: PredictClasses = predict_classes,
) -> torch.Tensor:
    """Append the predictions of a micro-batch to its sums, if the batch asks for them.

    The predictions are a flat vector for all examples of the global batch, with 0 for the examples that the micro-batch
    does not have. The sum over all micro-batches and replicas has each prediction once. `places` in the batch have the
    row of each example's prediction in the micro-batch, or -1.

    Args:
        sums: The sums of losses and of metrics over the micro-batch [2], or [2 * outputs] if there are several outputs.
        outputs: The model's outputs [rows, ...], float64.
        batch: The micro-batch.
        predict: A function that returns the predictions from the outputs in the rows `class_places`.
    """
    if "class_places" in batch:
        places, predictions = batch["class_places"], predict(outputs)
    elif "output_places" in batch:
        places, predictions = batch["output_places"], outputs.reshape(len(outputs), -1)
    else:
        return sums
    places = places.flatten()
    selected = predictions[places.clamp(min=0)]
    placed = torch.where(places[:, None] >= 0, selected, torch.zeros_like(selected))
    return torch.cat([sums, placed.flatten()])
