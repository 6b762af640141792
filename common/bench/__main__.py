"""Benchmark contestants that take turns: Lockstep's strategies, and scripts as users of other libraries write them."""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from common.bench.figures import Measured, figures
from common.bench.plan import plan
from common.bench.report import update_document, write_report
from common.bench.scaling import prediction
from common.bench.settings import DEFAULTS, load_settings
from common.bench.table import print_result
from common.bench.turns import finish, started, take_turns
from common.config.command_line import create_parser, report_user_errors
from common.errors import UserError, build_write_error
from common.run.progress import log_to


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. A user's error exits with 2."""
    parser = create_parser("common.bench", __doc__, DEFAULTS)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="bench.KEY=value, or of the training config")
    settings, overrides = load_settings(parser.parse_intermixed_args(arguments).overrides)
    output = _new_directory(settings.output)
    log_to(None)
    try:
        planned = plan(settings, overrides, output)
    except BaseException:
        with suppress(OSError):  # it has something in it
            output.rmdir()
        raise
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as temporary:  # of contestants that end by SIGKILL too
        commands = [
            replace(each.command, environment={**each.command.environment, "TMPDIR": temporary}) for each in planned
        ]
        with started(commands, settings.warmup_steps, _tell) as contestants:
            take_turns(contestants, settings.rounds, settings.block_seconds, _tell)
            finish(contestants)
    measured = [Measured(*pair) for pair in zip(planned, contestants, strict=True)]
    result = {**figures(settings, overrides, measured), "prediction": prediction(settings, measured)}
    paths = write_report(result, output)
    if settings.document is not None:
        update_document(result, Path(settings.document))
    print_result(result)
    print(*paths, sep="\n")
    return 0


def _new_directory(wanted: str | None) -> Path:
    output = Path(wanted or f"bench/{datetime.now():%Y%m%d-%H%M%S}").expanduser().resolve()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise build_write_error(f"bench.output={wanted}", error) from error
    if os.listdir(output):
        raise UserError(f"bench.output={wanted}: is not empty; choose another directory")
    return output


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
