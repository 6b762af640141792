"""Experiment trackers: services such as MLflow and Weights & Biases, which record runs.

They receive the scalars of the rows under their TensorBoard names, such as train/loss.
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from queue import Queue
from threading import Lock, Thread
from typing import Protocol

from typing_extensions import override

from common.config.compose import collect_values
from common.config.schema import Config
from common.errors import describe_error
from common.run.files import replace_text
from common.training.observer import Observer
from common.training.rows import Row, select_scalars

log = logging.getLogger("lockstep")

IDS = "trackers.json"  # file with the id of the run in each tracker, so that a resumed run continues there
PROJECT = "lockstep"
MAX_PARAM_LENGTH, MAX_METRICS = 500, 1000  # limits of MLflow: characters of a setting, values in one request
COMPLETED_TIMEOUT, STOPPED_TIMEOUT = 30.0, 3.0  # seconds to send the last rows of a run that completed or did not


class TrackerRun(Protocol):
    """A run in one tracker.

    Attributes:
        id: the id of the run in the tracker.
    """

    id: str

    def send(self, rows: list[Row]) -> None:
        """Send the scalars of rows of metrics.jsonl and evals.jsonl."""

    def end(self, status: str) -> None:
        """End the run. The status is "completed", "interrupted" or "failed"."""


class MlflowRun(TrackerRun):
    """A run in MLflow, at MLFLOW_TRACKING_URI in the experiment MLFLOW_EXPERIMENT_NAME.

    Args:
        run_dir: the run directory, which gives the run its name.
        settings: the values of the config by the full names of the keys.
        known_id: the id of the run if the tracker has it already, because this run was resumed.
    """

    def __init__(self, run_dir: Path, settings: Mapping[str, object], known_id: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if known_id is not None:
            self.id = known_id
            self._client.update_run(known_id, "RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        self.id = self._client.create_run(experiment_id, run_name=run_dir.name).info.run_id
        params = [Param(key, str(value)[:MAX_PARAM_LENGTH]) for key, value in settings.items()]
        self._client.log_batch(self.id, params=params)

    @override
    def send(self, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(name, value, now, row["step"]) for row in rows for name, value in select_scalars(row).items()]
        for first in range(0, len(values), MAX_METRICS):
            self._client.log_batch(self.id, metrics=values[first : first + MAX_METRICS])

    @override
    def end(self, status: str) -> None:
        self._client.set_terminated(self.id, {"completed": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED"))


class WandbRun(TrackerRun):
    """A run in the Weights & Biases project WANDB_PROJECT. By default it is offline; `wandb sync` uploads it.

    Its arguments are as for MlflowRun.
    """

    def __init__(self, run_dir: Path, settings: Mapping[str, object], known_id: str | None) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            mode=os.environ.get("WANDB_MODE", "offline"),
            name=run_dir.name,
            id=known_id,
            resume="allow" if known_id else None,
            dir=str(run_dir),
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )
        self.id = self._run.id

    @override
    def send(self, rows: list[Row]) -> None:
        for row in rows:
            self._run.log(select_scalars(row), step=row["step"])

    @override
    def end(self, status: str) -> None:
        import wandb

        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status != "completed"))
        wandb.teardown()  # ends the process that wandb.init started


TRACKERS: dict[str, type[MlflowRun] | type[WandbRun]] = {"mlflow": MlflowRun, "wandb": WandbRun}


class Trackers(Observer):
    """Observer that sends rows to the trackers of the config, each in a thread: training never waits for a tracker.

    A tracker that fails receives no more rows, and a warning is logged. The run directory has every row.
    """

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._ids = run_dir / IDS
        self._lock = Lock()
        # For each tracker, the rows to send, and as the last entry the status of the run.
        self._queues: dict[str, Queue[Row | str]] = {name: Queue() for name in config.trackers}
        settings = collect_values(config)
        self._threads = {
            name: Thread(target=self._send_rows, args=(name, queue, run_dir, settings), daemon=True)
            for name, queue in self._queues.items()
        }
        for thread in self._threads.values():
            thread.start()

    @override
    def record_steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Send rows of metrics.jsonl."""
        for queue in self._queues.values():
            for row in rows:
                queue.put(row)

    @override
    def record_evaluation(self, row: Row) -> None:
        """Send a row of evals.jsonl."""
        for queue in self._queues.values():
            queue.put(row)

    def close(self, status: str) -> None:
        """Wait until the remaining rows are sent, but not for long, and end the run in every tracker."""
        for queue in self._queues.values():
            queue.put(status)
        deadline = time.monotonic() + (COMPLETED_TIMEOUT if status == "completed" else STOPPED_TIMEOUT)
        for name, thread in self._threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("trackers=[%s]: did not accept the last rows in time; the run directory has them", name)

    def _read_ids(self) -> dict[str, str]:
        ids: dict[str, str] = json.loads(self._ids.read_text()) if self._ids.exists() else {}
        return ids

    def _send_rows(self, name: str, queue: "Queue[Row | str]", run_dir: Path, settings: Mapping[str, object]) -> None:
        """Send the rows of a queue to one tracker until the run has ended. Runs in a thread of its own."""
        try:
            with self._lock:
                known_id = self._read_ids().get(name)
            tracker_run: TrackerRun = TRACKERS[name](run_dir, settings, known_id)
            with self._lock:
                replace_text(self._ids, json.dumps({**self._read_ids(), name: tracker_run.id}) + "\n")
            while True:
                messages = [queue.get()]
                while not queue.empty():
                    messages.append(queue.get())
                if rows := [message for message in messages if isinstance(message, dict)]:
                    tracker_run.send(rows)
                if isinstance(messages[-1], str):
                    tracker_run.end(messages[-1])
                    return
        except Exception as error:
            reason = describe_error(error)
            log.warning("trackers=[%s]: receives no more rows of this run: %s", name, reason)
