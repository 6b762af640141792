"""Train the examples in every environment of build/environments, for the table in docs/parity.md: make bench-versions.

`make test-environments` makes the environments. Each example is trained once by every side: by PyTorch, by Keras 3 on
TensorFlow and by Keras 2, all from the initial weights of the PyTorch half; then by Keras 3 on PyTorch, by Keras 3 on
TensorFlow and by Keras 2, all from the initial weights of the Keras half. Then every pair of the runs is compared.
Finished runs in build/versions are kept. python -m benchmarks.versions EXAMPLE... trains only these examples.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.compare.options import load_options
from common.compare.verdict import LOCKSTEP, RunPair, compare_runs
from common.records.summary import SUMMARY_FILE, read_final_summary
from tests.environments import find_python
from tests.parity.conftest import make_overrides

EXAMPLES = ("lstm", "tabular", "gpt", "resnet", "hf")
MADE, RESULTS, PAGE = Path("build/environments"), Path("build/versions"), Path("docs/parity.md")
BEGIN, END = "<!-- make bench-versions -->\n", "<!-- end of the table of versions -->\n"
FEW = ("strategy=single", "train.steps=8", "train.checkpoint_every=null")
PROBLEMS = ("error: ", "failed: ")  # beginnings of the line in which a training command says why it has failed


@dataclass(frozen=True)
class Side:
    """A library that trains the examples, in an environment.

    Attributes:
        framework: "torch" or "tf".
        environment: A directory of MADE; empty for this environment.
        half: The half of an example that has the initial weights, which PyTorch's side trains: "torch" or "keras".
        is_keras_two: Whether TensorFlow's side trains the Keras half with Keras 2.
    """

    framework: str
    environment: str = ""
    half: str = "torch"
    is_keras_two: bool = False

    @property
    def name(self) -> str:
        """The name of the side's run directories."""
        two = "-keras2" if self.is_keras_two else ""
        return f"{self.framework}{two}-{self.environment or 'this'}-{self.half}-half"

    def list_overrides(self, example: str) -> list[str]:
        """Return the overrides of the training command."""
        overrides = [*make_overrides(RESULTS.absolute(), example), *FEW]
        overrides.append(f"model.torch=examples.{example}.model_{self.half}:build")
        if self.is_keras_two:
            overrides.append(f"model.tf=benchmarks.keras_two:build_{example}")
        if self.environment:
            overrides.append(f"python={find_python(MADE.absolute() / self.environment)}")
        return overrides


def list_sides(environments: Sequence[str]) -> list[Side]:
    """Return all sides, in this environment and in others."""
    torch = ["", *(name for name in environments if name.startswith("torch"))]
    transformers = [name for name in environments if name.startswith("transformers")]
    tensorflow = [name for name in environments if name not in (*torch, *transformers)]
    keras = [name for name in tensorflow if name.startswith("keras")]  # only these have the PyTorch of this environment
    return [
        *(Side("torch", name) for name in (*torch, *transformers)),
        *(Side("tf", name) for name in ("", *tensorflow)),
        Side("tf", is_keras_two=True),
        *(Side("torch", name, "keras") for name in (*torch, *keras)),
        Side("tf", half="keras"),
        Side("tf", half="keras", is_keras_two=True),
    ]


def train(task: tuple[Side, str]) -> str:
    """Train an example unless it has been trained. Return why the command has failed; empty if it has not."""
    side, example = task
    if side.is_keras_two and example == "hf":
        return "KerasHub needs Keras 3"
    summary = read_final_summary(_get_run_dir(task))
    if summary is not None and summary["status"] == "completed":
        return ""
    command = [sys.executable, "-m", f"{side.framework}_impl.train", f"run_dir={_get_run_dir(task)}", "resume=auto"]
    done = subprocess.run([*command, *side.list_overrides(example)], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith(PROBLEMS)]
    problem = lines[-1].partition(": ")[2] if lines else f"exit code {done.returncode}"
    print(f"{example} {side.name}: {problem if done.returncode else 'trained'}", flush=True)
    return problem if done.returncode else ""


def compare_sides(tasks: Sequence[tuple[Side, str]]) -> list[RunPair]:
    """Compare every pair of runs of an example."""
    return (
        compare_runs([_get_run_dir(task) for task in tasks], load_options().tolerances).pairs if len(tasks) > 1 else []
    )


def tabulate(sides: Sequence[Side], problems: Mapping[tuple[Side, str], str]) -> str:
    """Return a table of the sides with equal initial weights, and lines on what failed and what is not in lockstep."""
    examples = list(dict.fromkeys(example for _, example in problems))
    pairs = {
        example: compare_sides([(side, example) for side in sides if not problems[side, example]])
        for example in examples
    }
    rows = [("", *(f"`{example}`" for example in examples)), ("---",) * (1 + len(examples))]
    for side in sides:
        title = _describe(side, [example for example in examples if not problems[side, example]])
        rows.append((title, *map(partial(_format_cell, sides[0], side, pairs, problems), examples)))
    rows.append(("any two of these", *(_format_differences(pairs[example]) for example in examples)))
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    failures: dict[tuple[str, str], list[str]] = {}
    for (side, example), problem in problems.items():
        if problem and side in sides:
            failures.setdefault((side.environment, problem), []).append(f"`{example}`")
    lines = [f"- Failed: {name}, {', '.join(names)}: {problem}\n" for (name, problem), names in failures.items()]
    diverged = [pair for group in pairs.values() for pair in group if pair.verdict != LOCKSTEP]
    lines += [
        f"- Not in lockstep: {pair.a.path.name} and {pair.b.path.name}, `{pair.a.path.parent.name}`: {pair.verdict}"
        f"{', '.join(['', *pair.reasons])}\n"
        for pair in diverged
    ]
    return table + ("\n" + "".join(lines) if lines else "")


def _get_run_dir(task: tuple[Side, str]) -> Path:
    side, example = task
    return RESULTS / example / side.name


def _describe(side: Side, trained: Sequence[str]) -> str:
    """Return the libraries of a side with the versions in the summary of a run, or its environment without runs."""
    if not trained:
        return f"the environment {side.environment}"
    versions = json.loads((_get_run_dir((side, trained[0])) / SUMMARY_FILE).read_text())["versions"]
    backend = f"PyTorch {versions['torch']}" if side.framework == "torch" else f"TensorFlow {versions['tensorflow']}"
    if side.is_keras_two:
        return f"Keras 2 on {backend}"
    if side.environment.startswith("transformers"):
        return f"{backend} with transformers {versions['transformers']}"
    return backend if side.framework == side.half == "torch" else f"Keras {versions['keras']} on {backend}"


def _format_cell(
    reference: Side,
    side: Side,
    pairs: Mapping[str, Sequence[RunPair]],
    problems: Mapping[tuple[Side, str], str],
    example: str,
) -> str:
    """Return the difference between a side's run and the reference's run."""
    if problems[side, example]:
        return "failed"
    paths = {_get_run_dir((reference, example)), _get_run_dir((side, example))}
    return _format_differences([pair for pair in pairs[example] if {pair.a.path, pair.b.path} == paths])


def _format_differences(pairs: Sequence[RunPair]) -> str:
    """Return the largest difference of a loss, and whether some pairs are not in lockstep."""
    if not pairs:
        return ""
    largest = max(pair.max_loss_difference or 0.0 for pair in pairs)
    diverged = sum(pair.verdict != LOCKSTEP for pair in pairs)
    text = f"{largest:.1e}" if largest else "0"
    return f"{text}; {diverged} of {len(pairs)} pairs not in lockstep" if diverged else text


def main(examples: Sequence[str]) -> None:
    """Train what is missing, and write the table."""
    sides = list_sides([path.parent.name for path in sorted(MADE.glob("*/ready"))])
    for example in examples:
        make_overrides(RESULTS.absolute(), example)  # writes the data before two commands need it
    tasks = [(side, example) for example in examples for side in sides]
    with ThreadPoolExecutor(2) as pool:
        problems = dict(zip(tasks, pool.map(train, tasks), strict=True))
    tables = [tabulate([side for side in sides if side.half == half], problems) for half in ("torch", "keras")]
    before, _, remainder = PAGE.read_text().partition(BEGIN)
    after = remainder.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{tables[0]}\n{tables[1]}\n{END}{after}")
    print("\n".join(tables))


if __name__ == "__main__":
    main(sys.argv[1:] or EXAMPLES)
