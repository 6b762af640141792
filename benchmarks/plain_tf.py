"""The reference for speed: MirroredStrategy as one writes it by hand, over batches that are ready in memory."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras_hub.models import BertBackbone, BertTextClassifier

from common.models.initial_weights import InitialCheckpoint


class PlainMirrored:
    """As in TensorFlow's guide to custom training loops with tf.distribute."""

    def __init__(self, initial: InitialCheckpoint, strategy: tf.distribute.MirroredStrategy) -> None:
        self.strategy = strategy  # Lockstep's own: two in one process mix up their collectives
        with self.strategy.scope():
            backbone = BertBackbone.from_preset(str(initial.directory), dropout=0.0)
            self.model = BertTextClassifier(backbone, num_classes=3, dropout=0.0)
            self.optimizer = keras.optimizers.AdamW(1e-3)
            self.optimizer.build(self.model.trainable_variables)

    def distribute(self, shards: Sequence[dict[str, tf.Tensor]]) -> Any:
        """The shards of a global batch as one value for `train`."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: shards[context.replica_id_in_sync_group]
        )

    def train(self, batches: Sequence[Any], log_every: int) -> None:
        for index, batch in enumerate(batches):
            loss = self._train_step(batch)
            if index % log_every == 0:
                float(loss)

    @tf.function(reduce_retracing=True)
    def _train_step(self, batch: Any) -> tf.Tensor:
        def replica_step(shard: dict[str, tf.Tensor]) -> tf.Tensor:
            with tf.GradientTape() as tape:
                inputs = {
                    "token_ids": shard["input_ids"],
                    "segment_ids": shard["token_type_ids"],
                    "padding_mask": shard["attention_mask"],
                }
                logits = self.model(inputs, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(shard["labels"], logits)
                loss = tf.nn.compute_average_loss(losses)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            return loss

        per_replica = self.strategy.run(replica_step, args=(batch,))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)
