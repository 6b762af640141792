"""Communication between replicas: the bytes that DataParallel moves in a step, and what all-reduce algorithms send."""

from itertools import product

import numpy as np

from common.compare.read import KINDS, MOVED
from common.compare.runs import Run
from common.report.formats import TableSection, format_bytes

COLUMNS = ["run", "replica", "scattered", "broadcast", "gathered", "reduced", "logits held", "peak memory"]
SENT_COLUMNS = ["run", "rank", "bytes sent", "messages sent"]


def per_step(run: Run, kind: str) -> np.ndarray:
    """Bytes of a kind for each replica: the mean over the steps, for `memory` the peak. NaN where unknown."""
    values = run.traffic.get(kind, np.full((1, run.replicas), np.nan))
    return np.asarray(values.max(axis=0) if kind == "memory" else values.mean(axis=0))


def sections(runs: list[Run]) -> list[TableSection]:
    """A table of the bytes per step of each replica, and one of all that each rank sent, where runs counted them."""
    counted, sent = [run for run in runs if run.traffic], [run for run in runs if run.summary.get("bytes_sent")]
    found = []
    if counted:
        rows = [
            [run.label, str(replica), *(format_bytes(per_step(run, kind)[replica]) for kind in KINDS)]
            for run in counted
            for replica in range(run.replicas)
        ]
        sentences = [sentence for run in counted for sentence in imbalance(run)] + savings(counted)
        found.append(TableSection("Traffic of each replica in a step", COLUMNS, rows, sentences=sentences))
    if sent:
        rows = [
            [run.label, str(rank), format_bytes(count), f"{messages:,}" if messages is not None else "-"]
            for run in sent
            for rank, (count, messages) in enumerate(_sent(run))
        ]
        found.append(TableSection("Sent by each rank in all steps", SENT_COLUMNS, rows))
    return found


def imbalance(run: Run) -> list[str]:
    """How unevenly logits, memory and traffic are spread over the replicas, in a sentence."""
    parts = []
    logits, memory = per_step(run, "logits"), per_step(run, "memory")
    if logits.sum() > 0:
        most = int(logits.argmax())
        parts.append(f"replica {most} holds {logits[most] / logits.sum():.0%} of the logits")
    if memory.sum() > 0:
        parts.append(f"the largest peak memory is {memory.max() / memory.mean():.2f}x the mean")
    moved = np.nansum([per_step(run, kind) for kind in MOVED], axis=0)
    if moved.sum() > 0:
        parts.append(f"replica {moved.argmax()} moves {moved.max() / moved.mean():.2f}x the mean bytes")
    return [f"{run}: {', '.join(parts)}."] if parts else []


def savings(runs: list[Run]) -> list[str]:
    """What DataParallel saves by not gathering the logits, among runs with the same number of replicas."""
    dp = [run for run in runs if run.strategy == "dp"]
    gathering = [run for run in dp if run.config.get("strategy.loss") == "gathered"]
    sentences = []
    for base, run in product(gathering, dp):
        if run in gathering or run.replicas != base.replicas:
            continue
        output = int(base.config["strategy.output_device"])
        gathered = [format_bytes(float(per_step(each, "gathered").sum())) for each in (run, base)]
        held = [format_bytes(float(per_step(each, "logits")[output])) for each in (run, base)]
        sentences.append(
            f"{run} gathers {gathered[0]} in a step in place of {gathered[1]} of {base}, and replica {output} holds "
            f"{held[0]} of logits in place of {held[1]}."
        )
    return sentences


def _sent(run: Run) -> list[tuple[float | None, int | None]]:
    sent = run.summary["bytes_sent"]
    messages = run.summary.get("messages_sent") or []
    return list(zip(sent, [*messages, *[None] * (len(sent) - len(messages))], strict=False))
