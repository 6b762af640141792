"""Prove and train pairs of public architectures: `python -m benchmarks.zoo [NAME ...]`.

Without names, the command takes all pairs, and writes docs/models.md. It keeps the result of each pair in build/zoo, so
that an interrupted run continues; remove the file of a pair to try it again. With names, it tries these pairs again.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from benchmarks.zoo.catalog import PAIRS
from benchmarks.zoo.pairs import ZooPair
from benchmarks.zoo.proving import Prover
from benchmarks.zoo.result import ZooResult, read_result, write_result
from benchmarks.zoo.table import tabulate
from benchmarks.zoo.training import train_pair
from common.errors import UserError

RESULTS = Path("build/zoo")
PAGE, NOTES = Path("docs/models.md"), "models_notes.md"


def main(names: Sequence[str]) -> None:
    """Try the pairs of these names, or those without a result if there are none, and write the page."""
    unknown = sorted({*names} - {pair.name for pair in PAIRS})
    if unknown:
        raise UserError(f"{unknown[0]}: not a pair; the pairs are {', '.join(pair.name for pair in PAIRS)}")
    with Prover() as prover:
        for pair in PAIRS:
            path = RESULTS / f"{pair.name}.json"
            if pair.name in names or (not names and not path.exists()):
                result = try_pair(prover, pair)
                write_result(path, result)
                print(f"{pair.name}: {result}", flush=True)
    if not names:
        results = [(pair, read) for pair in PAIRS if (read := read_result(RESULTS / f"{pair.name}.json"))]
        notes = Path(__file__).with_name(NOTES).read_text()
        PAGE.write_text(notes.replace("TABLE", tabulate(results)))
        print(PAGE)


def try_pair(prover: Prover, pair: ZooPair) -> ZooResult:
    """Prove a pair, and train it if both models compute the same."""
    start = monotonic()
    result = prover.prove(pair)
    if result.proven and not result.differences:
        result = train_pair(pair, result)
    return replace(result, seconds=monotonic() - start)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
