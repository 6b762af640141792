"""One replica on one device: the reference that every other strategy must reproduce.

A strategy gets the context of the run (the config and the prepared inputs) and its group (the processes of the run).
The training loop passes global batches to `train` and receives the result of each step.
"""

from collections.abc import Iterable, Iterator

import torch
from typing_extensions import override

from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, SettingsT, StepResult, Strategy
from torch_impl.batches import to_tensors
from torch_impl.communication.rendezvous import Group
from torch_impl.device import measure_peak_memory, select_replica_devices
from torch_impl.models import build_model, trainable_parameters, use_sparse_gradients
from torch_impl.optimizer import Optimizer
from torch_impl.step import backward, compute_evaluation_sums, evaluate, seed_dropout
from torch_impl.task import build_task_functions
from torch_impl.training_state import collect_state, load_state


class Single(Strategy[SettingsT]):
    """One replica on one device.

    The class is generic so that a strategy of an extension can inherit from it and have its own settings.
    """

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        self.device = select_replica_devices(1, config.train.device)[0]
        self.precision = config.train.precision
        self.model = build_model(config, context.inputs.initial).to(self.device)
        self.task = build_task_functions(config.task, context.inputs.initial.hf_config)
        use_sparse_gradients(self.model)
        self.optimizer = Optimizer(config, trainable_parameters(self.model))

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            seed_dropout(self.config, batch.step)
            shard = to_tensors(batch.shard(rank=0, world_size=1), self.device)
            loss = backward(self.model, self.task, shard, batch.weight, self.precision)
            grad_norm = self.optimizer.update(batch.step)
            yield StepResult(batch, loss, grad_norm)

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self.model.eval()
        return evaluate(batches, self._compute_evaluation_sums)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> torch.Tensor:
        shard = to_tensors(batch.shard(rank=0, world_size=1), self.device)
        return compute_evaluation_sums(self.model, self.task, shard, self.precision)

    @override
    def state(self) -> State:
        return collect_state(self.model, self.optimizer)

    @override
    def load(self, checkpoint: SavedState) -> None:
        load_state(self.model, self.optimizer, checkpoint)

    @override
    def report(self) -> dict[str, object]:
        return {"peak_memory_bytes": measure_peak_memory([self.device])}
