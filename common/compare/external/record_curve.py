"""Loss curves of records. A record has the first steps of a training script that does not use Lockstep to train."""

from pathlib import Path

from common.compare.external.external_tables import ExternalRow, ExternalTable
from common.errors import UserError
from common.recording.record_reader import Record, open_record

# The kind of a recorded run is this prefix and the framework, such as "the record of a PyTorch script".
RECORD_KIND_PREFIX = "the record of a"


def read_record_curve(path: Path) -> ExternalTable:
    """Return the loss and the learning rate of each recorded step. Raise UserError for a damaged record.

    The loss of a step is the mean over its micro-batches and processes.
    """
    record = open_record(path)
    losses = {step: record.get_loss(step) for step in record.steps}
    if not any(loss is not None for loss in losses.values()):
        raise UserError(f"{path}: the recorder saw no loss; name the file of the script's log instead")
    rows = [
        ExternalRow(f"{path}: step {step}", {"step": step, "loss": loss, "learning_rate": _find_rate(record, step)})
        for step, loss in losses.items()
    ]
    title = {"torch": "PyTorch", "tensorflow": "TensorFlow"}[record.framework]
    return ExternalTable(f"{RECORD_KIND_PREFIX} {title} script", rows, notes=_list_notes(record))


def _find_rate(record: Record, step: int) -> float | None:
    """Return the learning rate of the first group of parameters in a step; None if it is not known."""
    rates = record.get_step_facts(step)[0]["rates"]  # of the first process
    return rates[0] if rates else None


def _list_notes(record: Record) -> list[str]:
    notes = list(record.notes)
    if any(len(set(record.get_step_facts(step)[0]["rates"])) > 1 for step in record.steps):
        notes.append("its learning rate is that of the first group of parameters")
    counts = [len(facts["losses"]) for step in record.steps for facts in record.get_step_facts(step)]
    if max(counts) > 1 or len(record.ranks) > 1:
        notes.append("its loss is the mean over micro-batches and processes")
    return notes
