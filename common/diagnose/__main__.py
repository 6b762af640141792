"""Find out why two training runs differ, and where the difference begins.

Trains both sides for a few steps and compares them stage by stage: config, batches, initial weights, layers, loss,
gradients, dropout, reduction, optimizer, state, evaluation. Compares in float64, or in `precision`. Exits with 0 if
nothing differs, with 1 if something differs, and with 2 for a mistake in the arguments.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from common.config.command_line import create_parser, report_user_errors
from common.diagnose.arguments import DEFAULTS, parse_arguments
from common.errors import FAILURE


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = create_parser("common.diagnose", __doc__, DEFAULTS)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="RUN_DIR | key=value",
        help="two run directories, or a=FRAMEWORK:STRATEGY and b=FRAMEWORK:STRATEGY; keys of a training run for both "
        "sides, a.KEY and b.KEY for one",
    )
    options, sides = parse_arguments(parser.parse_intermixed_args(arguments).overrides)
    from common.diagnose.report import print_diagnosis, write_report  # slow to import; --help does not need it
    from common.diagnose.walk import diagnose
    from common.training.stop import interrupt_on_signals

    if options.start is not None:
        print(f"from {options.start}: {options.steps} steps")
    with interrupt_on_signals():
        diagnosis = diagnose(sides, Path(options.output))
    print_diagnosis(diagnosis)
    for path in write_report(diagnosis, Path(options.output)):
        print(path)
    return 0 if diagnosis.is_equal else FAILURE


if __name__ == "__main__":
    sys.exit(main())
