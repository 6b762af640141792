"""Callbacks that record in Hugging Face's Trainer and in Lightning.

They derive from classes of these libraries, which are imported only when a script asks for a callback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from common.recording.following import MappedLoader
from torch_impl.record.check_arguments import follow_record
from torch_impl.record.recorder import Recorder


class CallbackRecorder:
    """Recorder that a trainer starts and ends."""

    def __init__(
        self,
        directory: str,
        steps: int = 3,
        max_bytes: int = 2 << 30,
        follow: str | None = None,
        map: str | None = None,
    ) -> None:
        """Prepare to record.

        Args:
            directory: The directory of the record. An earlier record there is replaced.
            steps: The number of optimizer steps to record.
            max_bytes: The largest number of bytes of this process's record.
            follow: The directory of another record, whose initial weights and batches the model takes.
            map: The file that pairs the model's variables with the other record's, if names and layers cannot.
        """
        super().__init__()
        self._follower = follow_record(follow, map, directory)
        self._arguments: dict[str, Any] = {"directory": directory, "steps": steps, "max_bytes": max_bytes}
        self._recorder: Recorder | None = None

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the loader. While the recorder follows a record, the batches are those of that record."""
        return loader if self._follower is None else MappedLoader(loader, self._follower.replace_batch)

    def _start(self, model: Any, optimizer: Any, scheduler: object) -> None:  # noqa: ANN401  as the trainer has them
        if self._recorder is None:
            self._recorder = Recorder(
                model=model, optimizer=optimizer, scheduler=scheduler, follow=self._follower, **self._arguments
            )

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()


class TrainerEvents(CallbackRecorder):
    """Events of Hugging Face's Trainer."""

    def on_train_begin(self, args: object, state: object, control: object, **kwargs: Any) -> None:  # noqa: ANN401
        """Start to record: the trainer has its optimizer and its loader now, and takes no batch before."""
        if self._follower is not None and self._recorder is None:
            self._follower.replace_batches(kwargs["train_dataloader"])
        self._start(kwargs["model"], kwargs["optimizer"], kwargs.get("lr_scheduler"))

    def on_train_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """End the record."""
        self._close()


class LightningEvents(CallbackRecorder):
    """Events of Lightning's Trainer."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        """Start to record: the trainer has its optimizers now."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._start(pl_module, trainer.optimizers[0], schedulers[0] if schedulers else None)

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        """End the record."""
        self._close()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """End the record."""
        self._close()


def build_callback(name: str) -> type:
    """Return TrainerRecorder or LightningRecorder. Raise ImportError if its library is missing."""
    events, base = (TrainerEvents, _import_trainer_base()) if name == "TrainerRecorder" else (
        LightningEvents, _import_lightning_base()
    )  # fmt: skip
    return type(name, (events, base), {"__doc__": events.__doc__, "__module__": "torch_impl.record"})


def _import_trainer_base() -> type:
    from transformers import TrainerCallback

    return TrainerCallback


def _import_lightning_base() -> type:
    # The two packages have different classes. A script uses the one that it has imported.
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        import pytorch_lightning

        old: type = pytorch_lightning.Callback
        return old
    import lightning.pytorch

    base: type = lightning.pytorch.Callback
    return base
