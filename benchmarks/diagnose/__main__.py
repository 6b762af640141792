"""Test `common.diagnose` on planted causes: `python -m benchmarks.diagnose [PART OF A NAME ...]`.

A plant is a pair of training runs, A and B, with a cause that makes them differ. Some have two causes; a clean pair has
none. Without names, the command diagnoses all of them and writes docs/diagnosis_table.md. The exit code is 1 if a clean
pair is said to differ, if fewer than 95 % of the single causes are named first, or if fewer than 80 % of the pairs of
causes are both named.
"""

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnose.catalog import list_double_plants, list_single_plants
from benchmarks.diagnose.clean_pairs import list_clean_pairs
from benchmarks.diagnose.faulty_data import write_data
from benchmarks.diagnose.plant import Plant
from common.diagnose.diagnosis import DiagnosisRecord, read_diagnosis

TABLE = Path("docs/diagnosis_table.md")
REQUIRED_SHARE, REQUIRED_SHARE_OF_BOTH = 0.95, 0.8
TIMEOUT_SECONDS = 300


@dataclass
class Row:
    """Result of a plant.

    Attributes:
        plant: The plant.
        is_named: Whether the first cause of the diagnosis is right. With two planted causes, whether both are named.
            For a clean pair, whether the diagnosis finds no difference.
        blamed: Causes that the diagnosis names but that were not planted.
        is_equal: Whether the diagnosis finds no difference; None if the command failed.
        sentence: The sentence of the diagnosis.
    """

    plant: Plant
    is_named: bool
    blamed: list[str]
    is_equal: bool | None
    sentence: str

    def __str__(self) -> str:
        """Return the row of the table."""
        cells = (self.plant.name, "yes" if self.is_named else "no", ", ".join(self.blamed), self.sentence)
        return f"| {' | '.join(cells)} |"


def run_diagnosis(plant: Plant, directory: Path) -> DiagnosisRecord | str:
    """Run the command on a plant. Return its diagnosis, or the last line of its error."""
    output = directory / "diagnosis"
    record = output / "diagnosis.json"
    record.unlink(missing_ok=True)  # left by the plant before
    arguments = shlex.split(plant.arguments.format(data=directory))
    command = [sys.executable, "-m", "common.diagnose", *arguments, f"output={output}", f"cache_dir={directory}/cache"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if completed.returncode not in (0, 1) or not record.exists():
        return (completed.stderr.strip() or "no output").splitlines()[-1]
    return read_diagnosis(record)


def judge(plant: Plant, diagnosis: DiagnosisRecord | str) -> Row:
    """Compare a diagnosis with what was planted."""
    if isinstance(diagnosis, str):
        return Row(plant, False, [], None, diagnosis)
    causes = [cause["cause"] for cause in diagnosis["causes"]]
    sentence = diagnosis["headline"].partition(" differ: ")[2] or diagnosis["headline"]
    if not plant.causes:
        return Row(plant, diagnosis["equal"], causes, diagnosis["equal"], sentence)
    expected = (*plant.causes, *plant.other_causes)
    is_named = bool(causes) and causes[0] in expected
    if plant.other_causes:
        is_named = all(not {*causes}.isdisjoint(planted) for planted in (plant.causes, plant.other_causes))
        sentence = "; ".join(cause["sentence"] for cause in diagnosis["causes"]) or sentence
    return Row(plant, is_named, [cause for cause in causes if cause not in expected], diagnosis["equal"], sentence)


def diagnose_plant(plant: Plant, directory: Path) -> Row:
    """Run the command on a plant and judge its diagnosis."""
    row = judge(plant, run_diagnosis(plant, directory))
    row.sentence = row.sentence.replace(str(directory), "").replace("|", "/")
    return row


def main(names: list[str]) -> int:
    """Diagnose the plants whose names contain one of `names`, or all. Return the exit code."""
    plants = [*list_single_plants(), *list_double_plants(), *list_clean_pairs()]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        write_data(Path(temporary))
        for plant in plants:
            if not names or any(name in plant.name for name in names):
                row = diagnose_plant(plant, Path(temporary))
                print("ok   " if row.is_named and not row.blamed else "WRONG", row, flush=True)
                rows.append(row)
    single = [row for row in rows if row.plant.causes and not row.plant.other_causes]
    double = [row for row in rows if row.plant.other_causes]
    clean = [row for row in rows if not row.plant.causes]
    summary = _summarize(single, double, clean)
    print(summary)
    if not names:
        tables = [_build_table("named first", single), _build_table("both named", double)]
        TABLE.write_text(f"{summary}. Made by `make bench-diagnose`.\n\n" + "\n".join(tables))
    is_enough = _count_named(single) >= REQUIRED_SHARE * len(single)
    is_enough &= _count_named(double) >= REQUIRED_SHARE_OF_BOTH * len(double)
    return 0 if is_enough and all(row.is_equal for row in clean) else 1


def _count_named(rows: Sequence[Row]) -> int:
    return sum(row.is_named for row in rows)


def _summarize(single: Sequence[Row], double: Sequence[Row], clean: Sequence[Row]) -> str:
    detected = sum(row.is_equal is False for row in single)
    blamed, blamed_beside_two = (sum(bool(row.blamed) for row in rows) for rows in (single, double))
    return (
        f"{len(single)} planted causes: {detected} detected, {_count_named(single)} named first, "
        f"{blamed} with something else blamed; {len(double)} times two causes: both named in {_count_named(double)}, "
        f"{blamed_beside_two} with something else blamed; {len(clean)} clean pairs: "
        f"{sum(row.is_equal is not True for row in clean)} false alarms"
    )


def _build_table(named_heading: str, rows: Sequence[Row]) -> str:
    lines = [f"| planted | {named_heading} | also blamed | sentence |", "| --- | --- | --- | --- |", *map(str, rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
