"""The losses that a task may choose. docs/tasks.md has the formulas.

`outputs` are logits or predictions, at least float32. A loss of classes takes outputs [..., classes].
"""

import tensorflow as tf

from common.config.task_kinds import ContrastiveSettings
from common.config.tasks import BinarySettings, ClassificationSettings, RegressionSettings


def compute_class_losses(task: ClassificationSettings, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the loss [m] of each label [m] from logits [m, classes]; m is the number of labels.

    Source: focal: Lin et al., Focal Loss for Dense Object Detection (2017), equation 4. hinge:
    keras.losses.CategoricalHinge.
    """
    if task.loss == "cross_entropy" and not task.label_smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
    is_label = _encode_one_hot(labels, outputs)
    if task.loss == "cross_entropy":
        return compute_share_losses(task, outputs, is_label)
    if task.loss == "focal":
        log_probabilities = tf.nn.log_softmax(outputs, -1)
        other_probability = tf.reduce_sum(tf.exp(log_probabilities) * (1 - is_label), -1)  # 1 - p without cancellation
        return -(other_probability**task.gamma) * tf.reduce_sum(log_probabilities * is_label, -1)
    return tf.nn.relu(1 + tf.reduce_max((1 - is_label) * outputs, -1) - tf.reduce_sum(is_label * outputs, -1))


def compute_share_losses(task: ClassificationSettings, outputs: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """Return the loss [n] of logits [n, classes] for the share of each class [n, classes].

    Source: kl: torch.nn.KLDivLoss of log_softmax, summed over the classes.
    """
    shares = tf.cast(shares, outputs.dtype)
    if task.loss == "cross_entropy":
        smoothed = shares * (1 - task.label_smoothing) + task.label_smoothing / outputs.shape[-1]
        # The gradient of TensorFlow's own operation assumes that the shares add up to exactly 1.
        return -tf.reduce_sum(smoothed * tf.nn.log_softmax(outputs, -1), -1)
    return tf.reduce_sum(tf.math.xlogy(shares, shares) - shares * tf.nn.log_softmax(outputs, -1), -1)


def compute_class_dice(
    task: ClassificationSettings, outputs: tf.Tensor, labels: tf.Tensor, is_labelled: tf.Tensor
) -> tf.Tensor:
    """Return the dice loss [n] of logits [n, m, classes] for labels [n, m], as a mean over the classes.

    n: examples. m: labels of an example.

    is_labelled: 1 for labels that count, 0 for others, in the type of the outputs.
    """
    probabilities = tf.nn.softmax(outputs, -1) * is_labelled[..., None]
    is_label = _encode_one_hot(labels, outputs) * is_labelled[..., None]
    return tf.reduce_mean(_compute_dice(probabilities, is_label, task.dice_smooth), 1)


def compute_binary_losses(task: BinarySettings, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the losses of logits for labels from 0 to 1, in the same shape.

    Source: focal: torchvision.ops.sigmoid_focal_loss. hinge: keras.losses.Hinge.
    """
    if task.loss == "hinge":
        return tf.nn.relu(1 - (2 * labels - 1) * outputs)
    smoothed = labels * (1 - task.label_smoothing) + task.label_smoothing / 2
    losses = tf.nn.sigmoid_cross_entropy_with_logits(smoothed, outputs)
    if task.loss == "cross_entropy":
        return losses
    other_probability = tf.sigmoid(outputs) * (1 - labels) + tf.sigmoid(-outputs) * labels
    losses = losses * other_probability**task.gamma
    return losses if task.alpha is None else losses * (task.alpha * labels + (1 - task.alpha) * (1 - labels))


def compute_binary_dice(
    task: BinarySettings, outputs: tf.Tensor, labels: tf.Tensor, is_labelled: tf.Tensor
) -> tf.Tensor:
    """Return the dice loss [n] of logits [n, m] for labels [n, m]. is_labelled: 1 for labels that count, else 0."""
    return _compute_dice(tf.sigmoid(outputs) * is_labelled, labels * is_labelled, task.dice_smooth)


def compute_regression_losses(task: RegressionSettings, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the losses of outputs for labels, in the same shape.

    Source: poisson: torch.nn.PoissonNLLLoss. quantile: sklearn.metrics.mean_pinball_loss.
    """
    if task.loss == "poisson":
        return tf.exp(outputs) - labels * outputs
    if task.loss == "quantile":
        return task.quantile * tf.nn.relu(labels - outputs) + (1 - task.quantile) * tf.nn.relu(outputs - labels)
    error = tf.abs(outputs - labels)
    if task.loss == "mse":
        return tf.square(error)
    if task.loss == "mae":
        return error
    clipped = tf.minimum(error, task.delta)
    return tf.square(clipped) / 2 + task.delta * (error - clipped)


def compute_contrastive_losses(task: ContrastiveSettings, embeddings: tf.Tensor) -> tf.Tensor:
    """Return the loss [n] of each example: its partner must be recognized among all partners and negatives.

    embeddings: [n, 2 or more, size]: anchors, partners, and further negatives of all anchors.

    Source: sentence-transformers' MultipleNegativesRankingLoss, and with `symmetric` its symmetric variant, which is
    the loss of Radford et al., Learning Transferable Visual Models From Natural Language Supervision (2021).
    """
    scores = compare_embeddings(task, embeddings)
    count = tf.shape(scores)[0]
    partners = tf.range(count)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(partners, scores)
    if not task.symmetric:
        return losses
    partner_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(partners, tf.transpose(scores[:, :count]))
    return (losses + partner_losses) / 2


def compare_embeddings(task: ContrastiveSettings, embeddings: tf.Tensor) -> tf.Tensor:
    """Return the logits [n, candidates] of the anchors: their similarities to all partners, then to the negatives."""
    if task.similarity == "cosine":
        squared = tf.reduce_sum(tf.square(embeddings), -1, keepdims=True)
        embeddings *= tf.math.rsqrt(tf.maximum(squared, 1e-24))
    candidates = tf.reshape(tf.transpose(embeddings[:, 1:], [1, 0, 2]), [-1, embeddings.shape[-1]])
    return tf.matmul(embeddings[:, 0], candidates, transpose_b=True) / task.temperature


def _compute_dice(probabilities: tf.Tensor, labels: tf.Tensor, smooth: float) -> tf.Tensor:
    """Return 1 minus the soft dice coefficient over the second axis.

    Source: Milletari et al., V-Net (2016), but without the squares in the denominator, as in keras.losses.Dice and
    MONAI.
    """
    overlap = tf.reduce_sum(probabilities * labels, 1)
    return 1 - (2 * overlap + smooth) / (tf.reduce_sum(probabilities, 1) + tf.reduce_sum(labels, 1) + smooth)


def _encode_one_hot(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return 1 for the class of each label [...] and 0 for others, [..., classes], in the type of the outputs."""
    return tf.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
