"""The result of a diagnosis of two training runs, and the format of diagnosis.json.

A is the reference run, and B the run that is compared with it. A stage compares one part of their training, such as the
gradients.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, cast

from common.diagnose.findings import DIFFERS, EQUAL, FRAMEWORK_CAUSES, NOT_COMPARED, PARTIAL_CAUSES, Cause, Stage
from common.diagnose.finished_runs import FinishedRuns


@dataclass(frozen=True)
class CauseRow:
    """A cause in a report, with the other tensors that differ for the same reason.

    Attributes:
        cause: The first such cause.
        other_tensors: Names of the other tensors.
    """

    cause: Cause
    other_tensors: Sequence[str]

    @property
    def sentence(self) -> str:
        """The sentence of the cause, and the number of other tensors that differ for the same reason."""
        count = len(self.other_tensors)
        if not count:
            return self.cause.sentence
        return f"{self.cause.sentence}; the same in {count} more {'places' if count > 1 else 'place'}"


@dataclass(frozen=True)
class Diagnosis:
    """Result of the comparison of runs A and B.

    Attributes:
        titles: Title of each run, such as "A (torch ddp)", by "a" and "b".
        stages: Stages in the order in which they were compared.
        unpaired: Parameters of A that B lacks.
        precision: Precision in which both sides trained.
        recorded: Sentences about the finished runs that A and B repeat.
        notes: Sentences for a reader of the report: what is not compared, and how to compare more.
    """

    titles: dict[str, str]
    stages: Sequence[Stage]
    unpaired: Sequence[str] = ()
    precision: str = "float64"
    recorded: FinishedRuns = field(default_factory=FinishedRuns)
    notes: Sequence[str] = ()

    @property
    def first_difference(self) -> Stage | None:
        """The first stage at which a difference begins."""
        return next((stage for stage in self.stages if stage.verdict == DIFFERS), None)

    @property
    def causes(self) -> list[Cause]:
        """The causes of all stages, in order. Confirmed ones come first, unless they explain their own tensors only.

        Causes that follow from the frameworks come last: what a user can correct in a script is the other causes.
        """
        causes = [cause for stage in self.stages for cause in stage.causes]

        def rate(cause: Cause) -> tuple[bool, bool]:
            return cause.cause in FRAMEWORK_CAUSES, not cause.confirmed or cause.cause in PARTIAL_CAUSES

        return sorted(causes, key=rate)

    @property
    def cause_rows(self) -> list[CauseRow]:
        """The causes as rows of a report: the same cause of several tensors is one row."""
        rows: dict[tuple[object, ...], list[Cause]] = {}
        for cause in self.causes:
            reason = cause.sentence.partition(": ")[2] or cause.sentence  # a sentence may be "PLACE: REASON"
            rows.setdefault((cause.cause, cause.side, cause.stage, cause.confirmed, reason), []).append(cause)
        return [CauseRow(causes[0], [cause.tensor for cause in causes[1:]]) for causes in rows.values()]

    @property
    def is_equal(self) -> bool:
        """Return whether A and B were found to be the same.

        No stage differs, none was left out, and the curves of the runs that A and B repeat were reproduced.
        """
        return self.has_equal_stages and not self.omitted_stages and not self.recorded.unreproduced

    @property
    def has_equal_stages(self) -> bool:
        """Return whether no stage differs."""
        return all(stage.verdict in (EQUAL, NOT_COMPARED) for stage in self.stages)

    @property
    def omitted_stages(self) -> list[Stage]:
        """The stages that could not be compared as a whole, such as because the scripts draw other random numbers."""
        return [stage for stage in self.stages if stage.omission]

    @property
    def headline(self) -> str:
        """The result in one sentence, together with the sentences about the finished runs that A and B repeat.

        A difference between A and B comes first, unless the runs were made in another environment.
        """
        parts = [*self.recorded.unreproduced, self._describe_stages()]
        if not self.has_equal_stages and not self.recorded.environment:
            parts.reverse()
        return "; ".join([*self.recorded.environment, *parts])

    def _describe_stages(self) -> str:
        a, b = self.titles["a"], self.titles["b"]
        if self.has_equal_stages and self.recorded.unreproduced:
            return f"the repeated runs {a} and {b} do not differ, in {self.precision}; the recorded runs may"
        if self.has_equal_stages:
            hidden = [stage.name for stage in self.stages if stage.checks and stage.verdict == NOT_COMPARED]
            exception = f" except {', '.join(hidden)}, which has only rounding errors" if hidden else ""
            if omitted := self.omitted_stages:
                names = ", ".join(stage.name for stage in omitted)
                reason = omitted[0].omission
                return f"not compared: {names} of {a} and {b}, because {reason}; no difference in what was compared"
            return f"no difference: {a} and {b} are the same at every stage{exception}, in {self.precision}"
        first = self.first_difference
        if first is None:
            return f"{a} and {b} differ, and no stage explains where the difference begins"
        if not self.causes:
            worst = first.worst_check
            return f"{a} and {b} differ first at the stage {first.name}: {worst.tensor if worst else ''}"
        cause = self.causes[0]
        return f"{a} and {b} differ: {cause.sentence}" + ("" if cause.confirmed else " (not confirmed)")


class CauseRecord(TypedDict):
    """A cause in diagnosis.json: the fields of `Cause`."""

    cause: str
    side: str
    stage: str
    tensor: str
    sentence: str
    confirmed: bool


class FirstDifferenceRecord(TypedDict):
    """The first difference in diagnosis.json: its stage and the tensor that differs most there."""

    stage: str
    tensor: str | None


class StageRecord(TypedDict):
    """A stage in diagnosis.json: its verdict and the tensor that differs most."""

    stage: str
    tensor: str | None
    difference: float | None
    noise: float | None
    verdict: str
    note: str


class DiagnosisRecord(TypedDict):
    """The content of diagnosis.json. `sides` holds the titles, and `ladder` the stages in order.

    `environment` and `unreproduced` hold the sentences of `FinishedRuns`.
    """

    equal: bool
    sides: dict[str, str]
    precision: str
    headline: str
    first: FirstDifferenceRecord | None
    causes: list[CauseRecord]
    ladder: list[StageRecord]
    unpaired: list[str]
    environment: list[str]
    unreproduced: list[str]
    notes: list[str]


def write_diagnosis(diagnosis: Diagnosis, path: Path) -> None:
    """Write diagnosis.json."""
    path.write_text(json.dumps(_to_record(diagnosis), indent=1) + "\n")


def read_diagnosis(path: Path) -> DiagnosisRecord:
    """Read diagnosis.json."""
    return cast(DiagnosisRecord, json.loads(path.read_text()))


def _to_record(diagnosis: Diagnosis) -> DiagnosisRecord:
    first = diagnosis.first_difference
    first_record: FirstDifferenceRecord | None = None
    if first is not None:
        first_record = {"stage": first.name, "tensor": first.worst_check.tensor if first.worst_check else None}
    return {
        "equal": diagnosis.is_equal,
        "sides": diagnosis.titles,
        "precision": diagnosis.precision,
        "headline": diagnosis.headline,
        "first": first_record,
        "causes": [cast(CauseRecord, vars(cause)) for cause in diagnosis.causes],
        "ladder": [_to_stage_record(stage) for stage in diagnosis.stages],
        "unpaired": list(diagnosis.unpaired),
        "environment": diagnosis.recorded.environment,
        "unreproduced": diagnosis.recorded.unreproduced,
        "notes": list(diagnosis.notes),
    }


def _to_stage_record(stage: Stage) -> StageRecord:
    worst = stage.worst_check
    return {
        "stage": stage.name,
        "tensor": worst.tensor if worst else None,
        "difference": worst.difference if worst and math.isfinite(worst.difference) else None,
        "noise": worst.noise if worst else None,
        "verdict": stage.verdict,
        "note": stage.note,
    }
