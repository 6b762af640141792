"""Prove every rung of the three pairs: `python -m benchmarks.crossed_wires INTERPRETER [PAIR ...]`.

The interpreter is that of an environment with torchvision; see docs/crossed_wires.md.
"""

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.crossed_wires.ladders import IMAGE_SIZE, LADDERS

HERE = "benchmarks.crossed_wires"


def build_command(interpreter: str, pair: str, changes: int) -> list[str]:
    """Return the command that compares both models of a pair after its first changes."""
    return [
        *(sys.executable, "-m", "common.map", f"torch.python={interpreter}"),
        *(f"model.torch={HERE}.models_torch:{pair}", f"model.tf={HERE}.models_keras:{pair}"),
        *(
            f"model.arguments={{changes: {changes}}}",
            f"inputs={{images: float32[4,{IMAGE_SIZE},{IMAGE_SIZE},channels=3]}}",
        ),
    ]


def main(interpreter: str, pairs: Sequence[str]) -> None:
    """Print what the map says after every number of changes."""
    probe = subprocess.run([interpreter, "-c", "import torchvision"], capture_output=True, text=True)
    if probe.returncode:
        sys.exit(f"skipped: {interpreter} cannot import torchvision: {probe.stderr.strip().splitlines()[-1]}")
    for pair in pairs or LADDERS:
        for changes in range(len(LADDERS[pair]) + 1):
            completed = subprocess.run(build_command(interpreter, pair, changes), capture_output=True, text=True)
            print(
                f"== {pair}, changes: {', '.join(LADDERS[pair][:changes]) or 'none'}; exit code {completed.returncode}"
            )
            print(
                "\n".join(line for line in completed.stdout.splitlines() if ": " in line) or completed.stderr,
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("error: no interpreter; pass that of an environment with torchvision")
    main(sys.argv[1], sys.argv[2:])
