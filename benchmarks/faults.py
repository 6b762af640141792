"""What a run survives, into docs/reliability.md: python -m benchmarks.faults [rounds]

The faults are those that tests do (`pytest -m survives`); each round does them at other moments.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

NOTES = "faults_notes.md"  # a person's comments on the numbers, beside the table
ROUNDS = 3
FIGURES = ("seconds", "lost", "tried")


def main() -> None:
    """Do the faults, print the table and write it."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    cases = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        cases += do(number)
    table = tabulate(cases)
    notes = Path(__file__).with_name(NOTES).read_text()
    Path("docs/reliability.md").write_text(notes.replace("TABLE", table))
    print(table)


def do(number: int, tests: str = "tests", **environment: str) -> list[ElementTree.Element]:
    """Run the tests once. Returns a report of each."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "survives", f"--basetemp={directory}/tests", tests]
        subprocess.run(
            [*command, "-o", "junit_family=legacy", f"--junitxml={report}"],
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "FAULTS_ROUND": str(number), **environment},
        )
        return list(ElementTree.parse(report).iter("testcase"))


def tabulate(cases: list[ElementTree.Element]) -> str:
    """A row for each fault; a test that was skipped has not tried it."""
    figures: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        told = [(each.attrib["name"], each.attrib["value"]) for each in case.iter("property")]
        values = {name: float(value) for name, value in told if name in FIGURES}
        if case.find("skipped") is not None:
            continue
        tried = values.get("tried", 1.0)
        values |= {"tried": tried, "held": tried if case.find("failure") is case.find("error") is None else 0.0}
        for name, fault in told:
            if name == "fault":
                for key, value in values.items():
                    figures.setdefault(fault, {}).setdefault(key, []).append(value)
    lines = ["| fault | tried | held | seconds to recover | steps lost |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {fault} | {sum(found['tried']):.0f} | {sum(found['held']):.0f} | "
        f"{_span(found.get('seconds', []), '.1f')} | {_span(found.get('lost', []), '.0f')} |"
        for fault, found in sorted(figures.items(), key=lambda pair: (not pair[0].startswith("SIG"), pair[0]))
    ]
    return "\n".join(lines)


def _span(values: list[float], form: str) -> str:
    """The median, and from where to where."""
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})" if values else ""


if __name__ == "__main__":
    main()
