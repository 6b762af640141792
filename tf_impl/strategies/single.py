"""One replica on one device: the reference that every other strategy must reproduce.

A strategy gets the context of the run (the config and the prepared inputs) and its group (the processes of the run).
The training loop passes global batches to `train` and receives the result of each step.
"""

from collections.abc import Iterable, Iterator

import tensorflow as tf
from typing_extensions import override

from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, SettingsT, StepResult, Strategy
from tf_impl.batches import SizedStep, build_input_signature, to_tensors
from tf_impl.communication.rendezvous import Group
from tf_impl.device import measure_peak_memory, select_replica_devices
from tf_impl.models import build_model
from tf_impl.optimizer import SCALARS, Optimizer
from tf_impl.step import MicroBatch, backward, compute_evaluation_sums, evaluate
from tf_impl.task import build_task_functions
from tf_impl.training_state import collect_state, load_state


class Single(Strategy[SettingsT]):
    """One replica on one device.

    The class is generic so that a strategy of an extension can inherit from it and have its own settings.
    """

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        self.devices, self.compiled = select_replica_devices(1, config.train.device), config.train.compile
        self.model = build_model(config, context.inputs.initial)
        self.task = build_task_functions(config.task, context.inputs.initial.hf_config)
        self.optimizer = Optimizer(config, self.model)
        train_shard, evaluation_shard = (
            build_input_signature(config, split, rank=0, evaluates=evaluates)
            for split, evaluates in ((context.inputs.cache.train, False), (context.inputs.cache.validation, True))
        )
        loss_divisor = tf.TensorSpec([], tf.float64)
        self.train_step = SizedStep(self._train_step, train_shard, loss_divisor, SCALARS)
        self.evaluation_step = tf.function(self._evaluation_step, [evaluation_shard])

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            shard = to_tensors(batch.shard(rank=0, world_size=1), self.compiled)
            loss, grad_norm = self.train_step(shard, batch.weight, self.optimizer.compute_scalars(batch.step))
            yield StepResult(batch, loss, grad_norm)

    def _train_step(
        self, shard: list[MicroBatch], loss_divisor: tf.Tensor, scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Make one update. loss_divisor: `GlobalBatch.weight`; scalars: see `Optimizer.compute_scalars`."""
        loss, gradients = backward(self.model, self.task, shard, loss_divisor, self.optimizer.parameters)
        gradients = self.optimizer.densify(gradients, keep_large_sparse=True)
        return loss, self.optimizer.update(gradients, scalars)

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        return evaluate(batches, self._compute_evaluation_sums)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> tf.Tensor:
        return self.evaluation_step(to_tensors(batch.shard(rank=0, world_size=1), self.compiled))

    def _evaluation_step(self, shard: list[MicroBatch]) -> tf.Tensor:
        return compute_evaluation_sums(self.model, self.task, shard)

    @override
    def state(self) -> State:
        return collect_state(self.model, self.optimizer)

    @override
    def load(self, checkpoint: SavedState) -> None:
        load_state(self.model, self.optimizer, checkpoint)

    @override
    def report(self) -> dict[str, object]:
        return {"peak_memory_bytes": measure_peak_memory(self.devices)}
