"""PyTorch's side of Lockstep."""

import sys
from pathlib import Path

import common

if Path(__file__).parents[1] != Path(*common.__path__).parent:
    print(
        f"error: {Path(*common.__path__)}: hides Lockstep's package of the same name; run `lockstep torch ...`, or set "
        "PYTHONSAFEPATH=1",
        file=sys.stderr,
    )
    sys.exit(2)
