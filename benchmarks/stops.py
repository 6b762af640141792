"""Stop runs of every strategy under every launcher at random moments: python -m benchmarks.stops [rounds].

Each round runs all cases of tests/faults/test_stop.py at other moments. It needs Linux and root, and prints a table.
"""

import sys
from statistics import median
from xml.etree import ElementTree

from benchmarks.faults import has_passed, run_tests

TESTS = "tests/faults/test_stop.py"
KEYS = ("strategy", "cluster", "signalled")  # properties that a test records: the last is the process that is stopped


def main() -> None:
    """Stop the runs and print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    cases = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        cases += run_tests(number, TESTS, STOPS_ALL="1")
    print(tabulate(cases))


def tabulate(cases: list[ElementTree.Element]) -> str:
    """Return a Markdown table with a row for each strategy, launcher and process that received the signal."""
    stops_by_key: dict[tuple[str, ...], list[tuple[bool, float]]] = {}  # whether the test has passed, and seconds
    for case in cases:
        properties = {element.attrib["name"]: element.attrib["value"] for element in case.iter("property")}
        if case.find("skipped") is None and "strategy" in properties:
            key = tuple(properties[name] for name in KEYS)
            seconds = float(properties.get("seconds", "inf"))
            stops_by_key.setdefault(key, []).append((has_passed(case), seconds))
    lines = [f"| {' | '.join(KEYS)} | held | seconds to exit: median | largest |", "| --- " * 6 + "|"]
    lines += [_format_row(key, stops) for key, stops in sorted(stops_by_key.items())]
    lines.append(_format_row(("all", "", ""), [stop for stops in stops_by_key.values() for stop in stops]))
    return "\n".join(lines)


def _format_row(key: tuple[str, ...], stops: list[tuple[bool, float]]) -> str:
    seconds = [duration for passed, duration in stops if passed]
    figures = f"{median(seconds):.1f} | {max(seconds):.1f}" if seconds else " | "
    return f"| {' | '.join(key)} | {len(seconds)} of {len(stops)} | {figures} |"


if __name__ == "__main__":
    main()
