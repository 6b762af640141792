"""The predictions of an evaluation, which are gathered as a sum over the replicas."""

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

    The flat vector of predictions has places for all examples of the global batch. Places of examples that the
    micro-batch does not have are 0, so that the sum over all micro-batches and replicas has each prediction once.
    `common.data.example_places` computes the places.

    Args:
        sums: The sums of the micro-batch [2], or [2 * outputs] if there are several.
        outputs: The model's outputs [rows, ...], float64.
        batch: The micro-batch.
        predict: A function of the outputs that returns the predictions of `class_places`, a row for each.
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
