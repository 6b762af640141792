"""Measure contestants that take turns: Lockstep's strategies, and scripts as users of other libraries write them."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from common.bench.contestant import finish_contestants, start_contestants, take_turns
from common.bench.figures import MeasuredContestant, build_result
from common.bench.options import DEFAULTS, load_options
from common.bench.plan import plan_contestants
from common.bench.prediction import predict
from common.bench.report import update_document, write_report
from common.bench.result_tables import print_result
from common.config.command_line import create_parser, report_user_errors
from common.errors import UserError, build_write_error
from common.run.progress import log_to


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code; an error of the user exits with 2."""
    parser = create_parser("common.bench", __doc__, DEFAULTS)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="bench.KEY=value, or of the training config")
    options, overrides = load_options(parser.parse_intermixed_args(arguments).overrides)
    output = _create_output(options.output)
    log_to(None)
    try:
        planned = plan_contestants(options, overrides, output)
    except BaseException:
        with suppress(OSError):  # the directory is not empty
            output.rmdir()
        raise
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as temporary:  # removes files of killed contestants
        commands = [
            replace(plan.command, environment={**plan.command.environment, "TMPDIR": temporary}) for plan in planned
        ]
        with start_contestants(commands, options.warmup_steps, _report) as contestants:
            take_turns(contestants, options.rounds, options.block_seconds, _report)
            finish_contestants(contestants)
    measured = [MeasuredContestant(plan, contestant) for plan, contestant in zip(planned, contestants, strict=True)]
    result = build_result(options, overrides, measured)
    result["prediction"] = predict(options, measured)
    paths = write_report(result, output)
    if options.document is not None:
        update_document(result, Path(options.document))
    print_result(result)
    print(*paths, sep="\n")
    return 0


def _create_output(output: str | None) -> Path:
    """Create the directory of the results. Raise UserError if it is not empty or cannot be written."""
    directory = Path(output or f"bench/{datetime.now():%Y%m%d-%H%M%S}").expanduser().resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise build_write_error(f"bench.output={output}", error) from error
    if any(directory.iterdir()):
        raise UserError(f"bench.output={output}: not empty; choose another directory")
    return directory


def _report(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
