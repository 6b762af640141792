"""Clipping of gradients before an update: by their common norm, by the norm of each gradient, or by their values."""

from collections.abc import Sequence

import tensorflow as tf

from common.config.schema import Config
from tf_impl.step import Gradient


def clip_gradients(config: Config, gradients: Sequence[Gradient], norm: tf.Tensor) -> list[Gradient]:
    """Return clipped gradients, one for each parameter. norm: the norm of the whole model's gradient."""
    settings = config.optimizer
    if settings.clip_value is not None:
        return [tf.clip_by_value(gradient, -settings.clip_value, settings.clip_value) for gradient in gradients]
    if settings.clip_norm is not None:
        norms = [tf.linalg.global_norm([gradient]) for gradient in gradients]
        factors = [_compute_factor(config, settings.clip_norm, x) for x in norms]
        return [tf.math.scalar_mul(factor, gradient) for factor, gradient in zip(factors, gradients, strict=True)]
    if settings.max_grad_norm is not None:
        factor = _compute_factor(config, settings.max_grad_norm, norm)
        return [tf.math.scalar_mul(factor, gradient) for gradient in gradients]
    return list(gradients)


def _compute_factor(config: Config, max_norm: float, norm: tf.Tensor) -> tf.Tensor:
    """Return the factor that clips a gradient to a norm, as torch.nn.utils.clip_grads_with_norm_ or Keras does."""
    limit = tf.constant(max_norm, norm.dtype)
    if config.optimizer.semantics == "keras":
        return limit / tf.maximum(norm, limit)
    return tf.minimum(limit / (norm + 1e-6), 1)
