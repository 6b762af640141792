"""The model, from the initial checkpoint; what it computes of a batch."""

from importlib import import_module

import keras
import numpy as np
import tensorflow as tf

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint


def build_model(config: Config, initial: InitialCheckpoint) -> keras.Model:
    """The model with the initial weights, float64 for precision=float64, else float32 (bfloat16 is for computing)."""
    keras.utils.set_random_seed(config.train.seed)  # of dropout
    keras.config.set_dtype_policy("mixed_bfloat16" if config.train.precision == "bfloat16" else config.train.precision)
    kind = import_module(
        f"tf_impl.models.{initial.hf_config['model_type']}"
    )  # alone: keras_hub takes a second to import
    model: keras.Model = kind.build(initial.hf_config)
    load_parameters(model, initial.weights())
    return model


def compute_logits(model: keras.Model, batch: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
    """Logits [n, classes], at least float32; the model's dtype policy computes them in bfloat16."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "weights")}
    logits = model(inputs, training=training)
    return logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)


def summed_loss(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Cross-entropy summed over the examples, each times its weight; a scalar."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], logits)
    return tf.reduce_sum(losses * tf.cast(batch["weights"], logits.dtype))


def evaluation_sums(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Summed loss and number of right answers, float64 [2]."""
    right = tf.cast(tf.argmax(logits, -1, tf.int32) == batch["labels"], tf.float64) * batch["weights"]
    return tf.stack([summed_loss(tf.cast(logits, tf.float64), batch), tf.reduce_sum(right)])


def seed_dropout(model: keras.Model, step: int) -> None:
    """Make what a new model's dropout draws next what it draws in update `step`: Keras counts its draws."""
    for variable in model.non_trainable_variables:
        if variable.name == "seed_generator_state":
            variable.assign(variable + np.array([0, step - 1], variable.dtype))


def load_parameters(model: keras.Model, parameters: dict[str, np.ndarray]) -> None:
    """Set the parameters by their Hugging Face names."""
    for parameter in model.named_parameters:
        parameter.variable.assign(parameter.to_keras(parameters[parameter.name]))


def parameters_by_name(model: keras.Model) -> dict[str, np.ndarray]:
    """The parameters under their Hugging Face names, in PyTorch's layout."""
    return {
        parameter.name: parameter.from_keras(tf.convert_to_tensor(parameter.variable.value).numpy())
        for parameter in model.named_parameters
    }
