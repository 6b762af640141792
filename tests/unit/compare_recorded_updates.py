"""Comparison of the updates of a record with the formulas of its optimizer."""

from pathlib import Path

from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.recorded_updates import list_updates, why_not_computed
from common.diagnose.recorded.rule_comparison import compare_with_rule
from common.diagnose.stages.optimizer import compare_optimizer
from common.recording.record_reader import open_record


def compare_recorded_updates(directory: Path, precision: str) -> list[TensorCheck]:
    """Return the checks of all updates of a record."""
    side, stage = RecordedSide("a", open_record(directory)), Stage("optimizer")
    assert not why_not_computed(side)
    for _, updates in list_updates(side, side.record.steps, precision):
        for recorded in updates:
            if recorded.settings.is_plain:
                compare_optimizer(stage, "a", recorded.update, are_slots_recorded=bool(recorded.recorded_slots))
            else:
                compare_with_rule(stage, side, recorded)
    return stage.checks
