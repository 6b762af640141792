"""Plant every cause and have it diagnosed: python -m benchmarks.diagnose [PART OF A NAME ...]

Without names: all plants, two plants at once, and all clean pairs, into docs/diagnosis_table.md. Exits with 1 where a
clean pair is said to differ, or where fewer than 95 % of the plants are named, or both of two in fewer than 80 %.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnose.data import write
from benchmarks.diagnose.plants import Plant, clean, plants, two_at_once

TABLE = Path("docs/diagnosis_table.md")
WANTED, WANTED_BOTH = 0.95, 0.8
SECONDS = 300


def run(plant: Plant, directory: Path) -> dict[str, Any]:
    """diagnosis.json of a plant; with only `error` where there is none."""
    output = directory / "diagnosis"
    (output / "diagnosis.json").unlink(missing_ok=True)
    arguments = [
        *shlex.split(plant.arguments.format(data=directory)),
        f"output={output}",
        f"cache_dir={directory}/cache",
    ]
    command = [sys.executable, "-m", "common.diagnose", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode not in (0, 1) or not (output / "diagnosis.json").exists():
        return {"error": (done.stderr.strip() or "no output").splitlines()[-1]}
    found: dict[str, Any] = json.loads((output / "diagnosis.json").read_text())
    return found


def judge(plant: Plant, found: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether the first cause that is named is right, of two whether both are; and what is named in error."""
    causes = [each["cause"] for each in found.get("causes", [])]
    if not plant.causes:
        return found.get("equal") is True, causes
    expected = (*plant.causes, *plant.others)
    named = bool(causes) and causes[0] in expected
    if plant.others:
        named = all(not {*causes}.isdisjoint(each) for each in (plant.causes, plant.others))
    return named, [each for each in causes if each not in expected]


@dataclass
class Row:
    """What was said of a plant: whether it was named, what else was blamed, and the sentences."""

    plant: Plant
    named: bool
    blamed: list[str]
    equal: bool | None
    said: str

    def __str__(self) -> str:
        return f"| {self.plant.name} | {'yes' if self.named else 'no'} | {', '.join(self.blamed)} | {self.said} |"


def diagnose(plant: Plant, directory: Path) -> Row:
    found = run(plant, directory)
    first = found.get("headline", found.get("error", "")).partition(" differ: ")
    said = first[2] or first[0]
    if plant.others:
        said = "; ".join(each["sentence"] for each in found.get("causes", [])) or said
    named, blamed = judge(plant, found)
    return Row(plant, named, blamed, found.get("equal"), said.replace(str(directory), "").replace("|", "/"))


def main(names: list[str]) -> int:
    every = [*plants(), *two_at_once(), *clean()]
    chosen = [each for each in every if not names or any(name in each.name for name in names)]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
        for plant in chosen:
            rows.append(row := diagnose(plant, Path(temporary)))
            print("ok   " if row.named and not row.blamed else "WRONG", row, flush=True)
    planted = [row for row in rows if row.plant.causes and not row.plant.others]
    both = [row for row in rows if row.plant.others]
    equal = [row for row in rows if not row.plant.causes]
    alarms = sum(row.equal is not True for row in equal)
    blamed, both_blamed = (sum(bool(row.blamed) for row in found) for found in (planted, both))
    named, both_named = (sum(row.named for row in found) for found in (planted, both))
    summary = (
        f"{len(planted)} planted causes: {sum(row.equal is False for row in planted)} detected, {named} named first, "
        f"{blamed} with something else blamed; {len(both)} times two causes: both named in {both_named}, {both_blamed} "
        f"with something else blamed; {len(equal)} clean pairs: {alarms} false alarms"
    )
    print(summary)
    if not names:
        tables = [_table("named first", planted), _table("both named", both)]
        TABLE.write_text(f"{summary}. Made by `make bench-diagnose`.\n\n" + "\n".join(tables))
    enough = named >= WANTED * len(planted) and both_named >= WANTED_BOTH * len(both)
    return 0 if not alarms and enough else 1


def _table(named: str, rows: list[Row]) -> str:
    lines = [f"| planted | {named} | also blamed | sentence |", "| --- | --- | --- | --- |", *map(str, rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
