"""Why two trainings differ, and where first.

Trains both sides for a few steps and compares them stage by stage: config, batches, initial weights, layers, loss,
gradients, dropout, reduction, optimizer, state, evaluation. In float64, or in `precision`. Exits with 0 where
nothing differs, with 1 where something does, with 2 for a mistake to fix.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from common.config.command_line import create_parser, report_user_errors
from common.diagnose.arguments import DEFAULTS, parse_arguments
from common.errors import FAILURE


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = create_parser("common.diagnose", __doc__, DEFAULTS)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="RUN_DIR | key=value",
        help="two run directories, or a=FRAMEWORK:STRATEGY and b=FRAMEWORK:STRATEGY; keys of a training for both, "
        "a.KEY and b.KEY for one",
    )
    settings, sides = parse_arguments(parser.parse_intermixed_args(arguments).overrides)
    from common.diagnose.report import print_diagnosis, write_diagnosis  # not needed for --help and errors
    from common.diagnose.walk import diagnose
    from common.training.stop import interrupt_on_signals

    if settings.start is not None:
        print(f"from {settings.start}: {settings.steps} steps")
    with interrupt_on_signals():
        found = diagnose(sides, Path(settings.output))
    print_diagnosis(found)
    for path in write_diagnosis(found, Path(settings.output)):
        print(path)
    return 0 if found.equal else FAILURE


if __name__ == "__main__":
    sys.exit(main())
