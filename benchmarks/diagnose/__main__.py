"""Plant every cause and have it diagnosed: python -m benchmarks.diagnose [PART OF A NAME ...]

Without names: all plants and all clean pairs, into docs/diagnosis_table.md. Exits with 1 where a clean pair is said to
differ, or where fewer than 95 % of the plants are named.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.diagnose.data import write
from benchmarks.diagnose.plants import Plant, clean, plants

TABLE = Path("docs/diagnosis_table.md")
WANTED = 0.95
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
    """Whether the first cause that is named is right, and the causes that are named in error."""
    causes = [each["cause"] for each in found.get("causes", [])]
    if not plant.causes:
        return found.get("equal") is True, causes
    return bool(causes) and causes[0] in plant.causes, [each for each in causes if each not in plant.causes]


def main(names: list[str]) -> int:
    chosen = [each for each in [*plants(), *clean()] if not names or any(name in each.name for name in names)]
    rows, right = [], {True: 0, False: 0}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        write(directory)
        for plant in chosen:
            found = run(plant, directory)
            named, wrong = judge(plant, found)
            right[named] += 1
            first = found.get("headline", found.get("error", "")).partition(" differ: ")
            said = (first[2] or first[0]).replace(str(directory), "").replace("|", "/")
            rows.append((plant, named, wrong, found.get("equal"), said))
            print(f"{'ok   ' if named and not wrong else 'WRONG'} {plant.name}: {said}; also {wrong}", flush=True)
    planted = [row for row in rows if row[0].causes]
    equal = [row for row in rows if not row[0].causes]
    alarms = sum(row[3] is not True for row in equal)
    detected = sum(row[3] is False for row in planted)
    named_count, blamed = sum(row[1] for row in planted), sum(bool(row[2]) for row in planted)
    summary = (
        f"{len(planted)} planted causes: {detected} detected, {named_count} named first, "
        f"{blamed} with something else blamed; {len(equal)} clean pairs: {alarms} false alarms"
    )
    print(summary)
    if not names:
        lines = [f"{summary}. Made by `make bench-diagnose`.", "", "| planted | named first | also blamed | sentence |"]
        lines += ["| --- | --- | --- | --- |"]
        lines += [f"| {p.name} | {'yes' if n else 'no'} | {', '.join(w)} | {s} |" for p, n, w, _, s in planted]
        TABLE.write_text("\n".join(lines) + "\n")
    return 0 if not alarms and named_count >= WANTED * len(planted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
