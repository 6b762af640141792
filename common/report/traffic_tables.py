"""Tables of the bytes that DataParallel moves in a step, that replicas hold between steps, and that ranks send."""

from itertools import product

import numpy as np

from common.compare.columns import MOVED_KINDS, TRAFFIC_KINDS
from common.compare.runs import Run
from common.records.summary import HELD_BYTES
from common.report.formats import TableSection, format_bytes

TRAFFIC_COLUMNS = ["run", "replica", "scattered", "broadcast", "gathered", "reduced", "logits held", "peak memory"]
HELD_COLUMNS = ["run", "parameters", "gradients", "slots", "together"]
SENT_COLUMNS = ["run", "rank", "bytes sent", "messages sent"]


def build_traffic_tables(runs: list[Run]) -> list[TableSection]:
    """Return tables of the bytes that runs counted: of each replica in and between steps, and of each rank."""
    tables = []
    if counted := [run for run in runs if run.bytes_by_kind]:
        rows = [
            [
                run.label,
                str(replica),
                *(format_bytes(run.get_traffic_per_step(kind)[replica]) for kind in TRAFFIC_KINDS),
            ]
            for run in counted
            for replica in range(run.replicas)
        ]
        sentences = [sentence for run in counted for sentence in describe_imbalance(run)] + describe_savings(counted)
        tables.append(TableSection("Traffic of each replica in a step", TRAFFIC_COLUMNS, rows, sentences=sentences))
    if rows := [[run.label, *map(format_bytes, _list_held(run))] for run in runs if any(_list_held(run))]:
        sentences = ["The replica that holds the most; buffers of communication and of a step are left out."]
        tables.append(TableSection("Held by a replica between steps", HELD_COLUMNS, rows, sentences=sentences))
    rows = [
        [run.label, str(rank), format_bytes(count), f"{messages:,}" if messages is not None else "-"]
        for run in runs
        for rank, (count, messages) in enumerate(_list_sent(run))
    ]
    if rows:
        tables.append(TableSection("Sent by each rank in all steps", SENT_COLUMNS, rows))
    return tables


def _list_held(run: Run) -> list[float]:
    """Return the bytes of parameters, of gradients, of slots and their sum, for the replica with the largest sum."""
    columns = [run.summary.get(name) or [] for name in HELD_BYTES]
    replicas = [[count or 0.0 for count in replica] for replica in zip(*columns, strict=False)]
    largest = max(replicas, key=sum, default=[])
    return [*largest, sum(largest)]


def _list_sent(run: Run) -> list[tuple[float | None, int | None]]:
    """Return the bytes and the messages that each rank sent."""
    sent = run.summary.get("bytes_sent") or []
    messages = run.summary.get("messages_sent") or []
    return list(zip(sent, [*messages, *[None] * (len(sent) - len(messages))], strict=False))


def describe_imbalance(run: Run) -> list[str]:
    """Return a sentence on how unevenly logits, memory and traffic are spread over the replicas."""
    findings = []
    logits, memory = run.get_traffic_per_step("logits"), run.get_traffic_per_step("memory")
    if logits.sum() > 0:
        largest = int(logits.argmax())
        findings.append(f"replica {largest} holds {logits[largest] / logits.sum():.0%} of the logits")
    if memory.sum() > 0:
        findings.append(f"the largest peak memory is {memory.max() / memory.mean():.2f}x the mean")
    moved = np.nansum([run.get_traffic_per_step(kind) for kind in MOVED_KINDS], axis=0)
    if moved.sum() > 0:
        findings.append(f"replica {moved.argmax()} moves {moved.max() / moved.mean():.2f}x the mean bytes")
    return [f"{run}: {', '.join(findings)}."] if findings else []


def describe_savings(runs: list[Run]) -> list[str]:
    """Return sentences on what DataParallel saves if the replicas compute the loss and do not gather the logits.

    A sentence compares a run that does not gather the logits with a run that gathers them (strategy.loss=gathered), if
    both have the same number of replicas.
    """
    dp_runs = [run for run in runs if run.strategy == "dp"]
    gathering = [run for run in dp_runs if run.config.get("strategy.loss") == "gathered"]
    sentences = []
    for base, run in product(gathering, dp_runs):
        if run in gathering or run.replicas != base.replicas:
            continue
        output_replica = int(str(base.config["strategy.output_device"]))
        gathered, base_gathered = (
            format_bytes(float(each.get_traffic_per_step("gathered").sum())) for each in (run, base)
        )
        held, base_held = (
            format_bytes(float(each.get_traffic_per_step("logits")[output_replica])) for each in (run, base)
        )
        sentences.append(
            f"{run} gathers {gathered} in a step in place of {base_gathered} of {base}, and replica {output_replica} "
            f"holds {held} of logits in place of {base_held}."
        )
    return sentences
