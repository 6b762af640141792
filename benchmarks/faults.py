"""Measure which faults a run survives, and write docs/reliability.md: python -m benchmarks.faults [rounds].

The tests with the mark `survives` inject the faults (`pytest -m survives`). Each round injects them at other moments.
Each test records properties in pytest's XML report, such as the fault and the seconds that the run took to recover.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

NOTES = "faults_notes.md"  # comments on the numbers, with a place for the table
ROUNDS = 3
FIGURES = ("seconds", "lost", "tried")  # the numeric properties: seconds to recover, steps lost, number of attempts


def main() -> None:
    """Inject the faults, print the table and write it."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    cases = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        cases += run_tests(number)
    table = tabulate(cases)
    notes = Path(__file__).with_name(NOTES).read_text()
    Path("docs/reliability.md").write_text(notes.replace("TABLE", table))
    print(table)


def run_tests(number: int, tests: str = "tests", **environment: str) -> list[ElementTree.Element]:
    """Run the tests of one round. Return the element <testcase> of each test in pytest's XML report."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "survives", f"--basetemp={directory}/tests", tests]
        subprocess.run(
            [*command, "-o", "junit_family=legacy", f"--junitxml={report}"],
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "FAULTS_ROUND": str(number), **environment},
        )
        return list(ElementTree.parse(report).iter("testcase"))


def has_passed(case: ElementTree.Element) -> bool:
    """Check whether a test has neither failed nor raised an error."""
    return case.find("failure") is case.find("error") is None


def tabulate(cases: list[ElementTree.Element]) -> str:
    """Return a Markdown table with a row for each fault. A skipped test has not tried its fault."""
    figures: dict[str, dict[str, list[float]]] = {}  # by fault and by figure
    for case in cases:
        if case.find("skipped") is not None:
            continue
        properties = [(element.attrib["name"], element.attrib["value"]) for element in case.iter("property")]
        values = {name: float(value) for name, value in properties if name in FIGURES}
        tried = values.get("tried", 1.0)
        values |= {"tried": tried, "held": tried if has_passed(case) else 0.0}
        for fault in (value for name, value in properties if name == "fault"):
            for key, value in values.items():
                figures.setdefault(fault, {}).setdefault(key, []).append(value)
    lines = ["| fault | tried | held | seconds to recover | steps lost |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {fault} | {sum(values['tried']):.0f} | {sum(values['held']):.0f} | "
        f"{_format_range(values.get('seconds', []), '.1f')} | {_format_range(values.get('lost', []), '.0f')} |"
        for fault, values in sorted(figures.items(), key=lambda pair: (not pair[0].startswith("SIG"), pair[0]))
    ]
    return "\n".join(lines)


def _format_range(values: list[float], form: str) -> str:
    """Return the median and, in parentheses, the smallest and the largest value."""
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})" if values else ""


if __name__ == "__main__":
    main()
