"""The table of the zoo in Markdown."""

from collections.abc import Sequence

from benchmarks.zoo.pairs import ZooPair
from benchmarks.zoo.result import ZooResult

HEADINGS = ("architecture", "PyTorch", "Keras", "paired", "proven", "trained", "seconds", "what differs")


def tabulate(results: Sequence[tuple[ZooPair, ZooResult]]) -> str:
    """Return a summary and a table with a row for each pair."""
    tried = [result for _, result in results if not result.skipped]
    summary = (
        f"{len(results)} pairs, {len(tried)} tried here: {sum(result.paired for result in tried)} paired without a map "
        f"file, {sum(result.proven for result in tried)} proven, "
        f"{sum(result.losses is not None for result in tried)} trained."
    )
    lines = [f"| {' | '.join(HEADINGS)} |", "| --- " * len(HEADINGS) + "|"]
    return "\n".join([summary, "", *lines, *(_format_row(pair, result) for pair, result in results)])


def _format_row(pair: ZooPair, result: ZooResult) -> str:
    if result.skipped:
        return (
            f"| {pair.name} | {pair.torch_source} | {pair.keras_source} | | | | | skipped: {_escape(result.skipped)} |"
        )
    cells = (
        pair.name,
        pair.torch_source,
        pair.keras_source,
        "yes" if result.paired else "no",
        f"{result.proof_difference:.0e}" if result.proven else "no",
        f"{result.losses:.0e}, {result.gradient_norms:.0e}" if result.losses is not None else "",
        f"{result.seconds:.0f}",
        _escape(result.differences[0] if result.differences else ""),
    )
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
