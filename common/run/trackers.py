"""Experiment trackers: rows go to MLflow or Weights & Biases too, under the names that they have in TensorBoard."""

import json
import logging
import os
import time
from pathlib import Path
from queue import Queue
from threading import Lock, Thread
from typing import Any, Protocol

from common.config.compose import collect_values
from common.config.schema import Config
from common.errors import describe_error
from common.run.rows import replace_text, scalars
from common.training.observer import Row
from common.training.state import Position, State

log = logging.getLogger("lockstep")

IDS = "trackers.json"  # in the run directory: what each tracker calls the run, so that a resumed one goes on there
PROJECT = "lockstep"
LONGEST, MOST_METRICS = 500, 1000  # of MLflow: characters of a setting, values of a request
PATIENCE, HURRY = 30.0, 3.0  # seconds for the last rows: of a completed run, and of one that is stopped


class Service(Protocol):
    """One tracker's run. id: what the tracker calls it."""

    id: str

    def send(self, rows: list[Row]) -> None:
        """Rows of metrics.jsonl and evals.jsonl."""

    def end(self, status: str) -> None:
        """The run has ended: completed, interrupted or failed."""


class Mlflow:
    """MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], known: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if known is not None:
            self.id = known
            self._client.update_run(known, "RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        self.id = self._client.create_run(place, run_name=run_dir.name).info.run_id
        params = [Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
        self._client.log_batch(self.id, params=params)

    def send(self, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(name, value, now, row["step"]) for row in rows for name, value in scalars(row).items()]
        for first in range(0, len(values), MOST_METRICS):
            self._client.log_batch(self.id, metrics=values[first : first + MOST_METRICS])

    def end(self, status: str) -> None:
        self._client.set_terminated(self.id, {"completed": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED"))


class Wandb:
    """WANDB_PROJECT and WANDB_MODE say where; offline where nothing is said, to be sent by `wandb sync`."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], known: str | None) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            mode=os.environ.get("WANDB_MODE", "offline"),
            name=run_dir.name,
            id=known,
            resume="allow" if known else None,
            dir=str(run_dir),
            config=settings,
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )
        self.id = self._run.id

    def send(self, rows: list[Row]) -> None:
        for row in rows:
            self._run.log(scalars(row), step=row["step"])

    def end(self, status: str) -> None:
        import wandb

        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status != "completed"))
        wandb.teardown()  # its own process


SERVICES: dict[str, type[Mlflow] | type[Wandb]] = {"mlflow": Mlflow, "wandb": Wandb}


class Trackers:
    """The observer. Each tracker has a thread, so that training never waits for it.

    One that fails gets no more of the run, which a warning says: the run directory has every row.
    """

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._ids = run_dir / IDS
        self._lock = Lock()
        self._queues: dict[str, Queue[Row | str]] = {name: Queue() for name in config.trackers}
        settings = collect_values(config)
        self._threads = {
            name: Thread(target=self._follow, args=(name, queue, run_dir, settings), daemon=True)
            for name, queue in self._queues.items()
        }
        for thread in self._threads.values():
            thread.start()

    def steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Send rows of metrics.jsonl."""
        for queue in self._queues.values():
            for row in rows:
                queue.put(row)

    def evaluation(self, row: Row) -> None:
        """Send a row of evals.jsonl."""
        for queue in self._queues.values():
            queue.put(row)

    def save(self, state: State, position: Position) -> None:
        """Nothing: weights stay in the run directory."""

    def close(self, status: str) -> None:
        """Wait for what is not sent yet, and end the run everywhere."""
        for queue in self._queues.values():
            queue.put(status)
        until = time.monotonic() + (PATIENCE if status == "completed" else HURRY)
        for name, thread in self._threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                log.warning("trackers=[%s]: did not take the last rows in time; the run directory has them", name)

    def _follow(self, name: str, queue: "Queue[Row | str]", run_dir: Path, settings: dict[str, Any]) -> None:
        """Send what comes until the run has ended."""
        try:
            with self._lock:
                known = json.loads(self._ids.read_text()) if self._ids.exists() else {}
            service: Service = SERVICES[name](run_dir, settings, known.get(name))
            with self._lock:
                known = json.loads(self._ids.read_text()) if self._ids.exists() else {}
                replace_text(self._ids, json.dumps({**known, name: service.id}) + "\n")
            while True:
                found = [queue.get()]
                while not queue.empty():
                    found.append(queue.get())
                if rows := [each for each in found if isinstance(each, dict)]:
                    service.send(rows)
                if isinstance(found[-1], str):
                    service.end(found[-1])
                    return
        except Exception as error:
            reason = describe_error(error)
            log.warning("trackers=[%s]: gets no more of this run: %s", name, reason)
