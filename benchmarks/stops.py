"""Stops at random moments, of every strategy under every launcher: python -m benchmarks.stops [rounds]

It does all cases of tests/faults/test_stop.py, in each round at other moments, and prints a table. Linux, as root.
"""

import sys
from statistics import median
from xml.etree import ElementTree

from benchmarks.faults import do

TESTS = "tests/faults/test_stop.py"
KEYS = ("strategy", "cluster", "signalled")


def main() -> None:
    """Stop the runs and print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    cases = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        cases += do(number, TESTS, STOPS_ALL="1")
    print(tabulate(cases))


def tabulate(cases: list[ElementTree.Element]) -> str:
    """A row for each strategy, launcher and target."""
    found: dict[tuple[str, ...], list[tuple[bool, float]]] = {}
    for case in cases:
        told = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
        if case.find("skipped") is None and "strategy" in told:
            held = case.find("failure") is case.find("error") is None
            key = tuple(told[name] for name in KEYS)
            found.setdefault(key, []).append((held, float(told.get("seconds", "inf"))))
    lines = [f"| {' | '.join(KEYS)} | held | seconds to exit: median | largest |", "| --- " * 6 + "|"]
    for key, stops in sorted(found.items()):
        lines.append(_row(key, stops))
    lines.append(_row(("all", "", ""), [stop for stops in found.values() for stop in stops]))
    return "\n".join(lines)


def _row(key: tuple[str, ...], stops: list[tuple[bool, float]]) -> str:
    seconds = [each for held, each in stops if held]
    figures = f"{median(seconds):.1f} | {max(seconds):.1f}" if seconds else " | "
    return f"| {' | '.join(key)} | {len(seconds)} of {len(stops)} | {figures} |"


if __name__ == "__main__":
    main()
