"""Find out why two training runs differ, and where the difference begins.

Trains both sides for a few steps and compares them stage by stage: environment, config, batches, initial weights,
layers, loss, gradients, dropout, reduction, optimizer, state, evaluation. Compares in float64, or in `precision`. Exits
with 0 if nothing differs, with 1 if something differs or could not be compared, and with 2 for a mistake in the
arguments.

Two records of training scripts are compared as they are: nothing is trained.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.config.command_line import create_parser, report_user_errors
from common.diagnose.arguments import DEFAULTS, check_interpreters, is_path, name_sides_by_paths, parse_arguments
from common.diagnose.recorded.record_arguments import has_records, parse_record_arguments
from common.errors import FAILURE, UserError
from common.records.bundle import OpenBundles, open_bundles
from common.training.stop import interrupt_on_signals

if TYPE_CHECKING:
    from common.diagnose.diagnosis import Diagnosis


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = create_parser("common.diagnose", __doc__, DEFAULTS)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="RUN_DIR | RECORD | BUNDLE | key=value",
        help="two run directories, two records of scripts, bundles of either, or a=FRAMEWORK:STRATEGY and "
        "b=FRAMEWORK:STRATEGY; keys of a training run for both sides, a.KEY and b.KEY for one",
    )
    overrides = name_sides_by_paths(parser.parse_intermixed_args(arguments).overrides)
    paths = [Path(argument) for argument in overrides if is_path(argument)]
    with interrupt_on_signals(), open_bundles(paths) as bundles:
        overrides = [str(bundles.locate(Path(text))) if is_path(text) else text for text in overrides]
        if files := [text for text in overrides if is_path(text) and os.path.isfile(text)]:  # noqa: PTH113  as in is_path
            raise UserError(
                f"{files[0]}: a file, but no bundle, or one that is empty or cannot be read; make one with "
                "python -m common.export bundle=PATH"
            )
        run = _diagnose_records if has_records(overrides) else _diagnose_runs
        diagnosis, output = run(overrides, bundles)
    from common.diagnose.report import print_diagnosis, write_report  # slow to import; --help does not need it

    print_diagnosis(diagnosis)
    for path in write_report(diagnosis, output):
        print(path)
    return 0 if diagnosis.is_equal else FAILURE


def _diagnose_runs(overrides: Sequence[str], bundles: OpenBundles) -> tuple["Diagnosis", Path]:
    """Diagnose two training runs. Return the result and the directory of the report."""
    options, sides = parse_arguments(overrides)
    check_interpreters(sides)
    from common.diagnose.walk import diagnose

    if options.start is not None:
        print(bundles.rename(f"from {options.start}: {options.steps} steps"))
    output = Path(options.output)
    diagnosis = diagnose(sides, output)
    diagnosis.recorded.environment[:] = map(bundles.rename, diagnosis.recorded.environment)
    return diagnosis, output


def _diagnose_records(overrides: Sequence[str], bundles: OpenBundles) -> tuple["Diagnosis", Path]:
    """Diagnose two records. Return the result and the directory of the report."""
    options = parse_record_arguments(overrides)
    from common.diagnose.recorded.walk import diagnose_records

    options.output.mkdir(parents=True, exist_ok=True)
    return diagnose_records(options.a, options.b, options.map, bundles), options.output


if __name__ == "__main__":
    sys.exit(main())
