"""The losses that a task may choose. docs/tasks.md has the formulas.

`outputs` are logits or predictions, at least float32. A loss of classes takes outputs [..., classes].
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, log_softmax

from common.config.task_kinds import ContrastiveSettings
from common.config.tasks import BinarySettings, ClassificationSettings, RegressionSettings


def compute_class_losses(task: ClassificationSettings, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss [m] of each label [m] from logits [m, classes]; m is the number of labels.

    Source: focal: Lin et al., Focal Loss for Dense Object Detection (2017), equation 4. hinge:
    keras.losses.CategoricalHinge.
    """
    if task.loss == "cross_entropy":
        return cross_entropy(outputs, labels, reduction="none", label_smoothing=task.label_smoothing)
    is_label = _encode_one_hot(labels, outputs)
    if task.loss == "focal":
        log_probabilities = log_softmax(outputs, -1)
        other_probability = (log_probabilities.exp() * (1 - is_label)).sum(-1)  # 1 - p without cancellation
        return -(other_probability**task.gamma) * (log_probabilities * is_label).sum(-1)
    return (1 + ((1 - is_label) * outputs).amax(-1) - (is_label * outputs).sum(-1)).relu()


def compute_share_losses(task: ClassificationSettings, outputs: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the loss [n] of logits [n, classes] for the share of each class [n, classes].

    Source: kl: torch.nn.KLDivLoss of log_softmax, summed over the classes.
    """
    shares = shares.to(outputs.dtype)
    if task.loss == "cross_entropy":
        return cross_entropy(outputs, shares, reduction="none", label_smoothing=task.label_smoothing)
    return (torch.xlogy(shares, shares) - shares * log_softmax(outputs, -1)).sum(-1)


def compute_class_dice(
    task: ClassificationSettings, outputs: torch.Tensor, labels: torch.Tensor, is_labelled: torch.Tensor
) -> torch.Tensor:
    """Return the dice loss [n] of logits [n, m, classes] for labels [n, m], as a mean over the classes.

    n: examples. m: labels of an example.

    is_labelled: 1 for labels that count, 0 for others, in the type of the outputs.
    """
    probabilities = outputs.softmax(-1) * is_labelled[..., None]
    is_label = _encode_one_hot(labels, outputs) * is_labelled[..., None]
    return _compute_dice(probabilities, is_label, task.dice_smooth).mean(1)


def compute_binary_losses(task: BinarySettings, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the losses of logits for labels from 0 to 1, in the same shape.

    Source: focal: torchvision.ops.sigmoid_focal_loss. hinge: keras.losses.Hinge.
    """
    if task.loss == "hinge":
        return (1 - (2 * labels - 1) * outputs).relu()
    smoothed = labels * (1 - task.label_smoothing) + task.label_smoothing / 2
    losses = binary_cross_entropy_with_logits(outputs, smoothed, reduction="none")
    if task.loss == "cross_entropy":
        return losses
    other_probability = outputs.sigmoid() * (1 - labels) + (-outputs).sigmoid() * labels
    losses = losses * other_probability**task.gamma
    return losses if task.alpha is None else losses * (task.alpha * labels + (1 - task.alpha) * (1 - labels))


def compute_binary_dice(
    task: BinarySettings, outputs: torch.Tensor, labels: torch.Tensor, is_labelled: torch.Tensor
) -> torch.Tensor:
    """Return the dice loss [n] of logits [n, m] for labels [n, m]. is_labelled: 1 for labels that count, else 0."""
    return _compute_dice(outputs.sigmoid() * is_labelled, labels * is_labelled, task.dice_smooth)


def compute_regression_losses(task: RegressionSettings, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the losses of outputs for labels, in the same shape.

    Source: poisson: torch.nn.PoissonNLLLoss. quantile: sklearn.metrics.mean_pinball_loss.
    """
    if task.loss == "poisson":
        return outputs.exp() - labels * outputs
    if task.loss == "quantile":
        return task.quantile * (labels - outputs).relu() + (1 - task.quantile) * (outputs - labels).relu()
    error = (outputs - labels).abs()
    if task.loss == "mse":
        return error.square()
    if task.loss == "mae":
        return error
    clipped = error.clamp(max=task.delta)
    return clipped.square() / 2 + task.delta * (error - clipped)


def compute_contrastive_losses(task: ContrastiveSettings, embeddings: torch.Tensor) -> torch.Tensor:
    """Return the loss [n] of each example: its partner must be recognized among all partners and negatives.

    embeddings: [n, 2 or more, size]: anchors, partners, and further negatives of all anchors.

    Source: sentence-transformers' MultipleNegativesRankingLoss, and with `symmetric` its symmetric variant, which is
    the loss of Radford et al., Learning Transferable Visual Models From Natural Language Supervision (2021).
    """
    scores = compare_embeddings(task, embeddings)
    partners = torch.arange(len(scores), device=scores.device)
    losses = cross_entropy(scores, partners, reduction="none")
    if not task.symmetric:
        return losses
    return (losses + cross_entropy(scores[:, : len(scores)].T, partners, reduction="none")) / 2


def compare_embeddings(task: ContrastiveSettings, embeddings: torch.Tensor) -> torch.Tensor:
    """Return the logits [n, candidates] of the anchors: their similarities to all partners, then to the negatives."""
    if task.similarity == "cosine":
        embeddings = embeddings * embeddings.square().sum(-1, keepdim=True).clamp(min=1e-24).rsqrt()
    candidates = embeddings[:, 1:].transpose(0, 1).flatten(0, 1)
    return embeddings[:, 0] @ candidates.T / task.temperature


def _compute_dice(probabilities: torch.Tensor, labels: torch.Tensor, smooth: float) -> torch.Tensor:
    """Return 1 minus the soft dice coefficient over the second axis.

    Source: Milletari et al., V-Net (2016), but without the squares in the denominator, as in keras.losses.Dice and
    MONAI.
    """
    overlap = (probabilities * labels).sum(1)
    return 1 - (2 * overlap + smooth) / (probabilities.sum(1) + labels.sum(1) + smooth)


def _encode_one_hot(labels: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return 1 for the class of each label [...] and 0 for others, [..., classes], in the type of the outputs."""
    return torch.nn.functional.one_hot(labels, outputs.shape[-1]).to(outputs.dtype)
