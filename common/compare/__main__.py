"""Compare runs: tables and a verdict on the terminal, report.html, report.md and report.json in a directory."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from common.compare.external.load import load_external_runs
from common.compare.find import find_named_runs, find_newest_runs
from common.compare.margins import parse_margins
from common.compare.options import CommandLine, CompareOptions, parse_command_line
from common.compare.runs import Run, load_runs
from common.compare.train_missing import plan_runs, train_missing
from common.compare.verdict import Comparison, compare
from common.config.command_line import report_user_errors
from common.errors import FAILURE, UserError, escape_control_characters
from common.records.bundle import is_bundle, open_bundles
from common.report.json_report import write_json
from common.report.markdown import write_markdown
from common.report.page.render import write_page
from common.report.serve import serve, watch
from common.report.terminal import print_comparison
from common.training.stop import interrupt_on_signals


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 1 if a training run failed, otherwise 0. With --check, also 1 if a pair is not in lockstep, a
        group of seeds is not equivalent to the reference group, or a run cannot be read. A user's error exits with 2.
    """
    command_line = parse_command_line(__doc__, arguments)
    options = command_line.options
    failures: dict[Path, str] = {}  # why training runs failed
    run_dirs = command_line.run_dirs
    if options.run:
        planned = plan_runs(options.run, command_line.training_overrides, Path(options.runs), options.environments)
        failures = train_missing(planned)
        run_dirs = [run.directory for run in planned if run.directory.exists()] + run_dirs
    elif options.environments:
        raise UserError("environments: applies to run=[...] only; name a run in one, such as run=[torch:ddp@old]")
    read_again = partial(read_comparison, options, run_dirs, command_line.external, failures)
    if command_line.watch:
        roots = [*run_dirs, *(path for _, path in command_line.external)] or [Path(options.runs)]
        watch(read_again, roots, options.port)
        return 0
    comparison = read_again()
    write_reports(comparison, command_line)
    if command_line.serve:
        serve(comparison, options.port)
    return FAILURE if failures or (command_line.check and not comparison.passes_check) else 0


def read_comparison(
    options: CompareOptions,
    run_dirs: Sequence[Path],
    external: Sequence[tuple[str, Path]],
    failures: Mapping[Path, str],
) -> Comparison:
    """Read runs and compare them.

    Args:
        options: The options of the command.
        run_dirs: Run directories, directories with runs below them, or bundles. If empty, the newest runs are read.
        external: Name and path of each external run.
        failures: Reasons why training runs failed, by their directories.

    Raises:
        UserError: No run can be read.
    """
    paths = [*run_dirs, *(path for _, path in external)]
    signals = interrupt_on_signals() if any(map(is_bundle, paths)) else nullcontext()
    with signals, open_bundles(paths, only_curves=True) as bundles:
        located = [bundles.locate(path) for path in run_dirs if path not in bundles.damaged]
        located_external = [(name, bundles.locate(path)) for name, path in external if path not in bundles.damaged]
        reasons = {**failures, **bundles.damaged}
        runs, left_out, notes = _read_runs(options, located, located_external, reasons)
    for run in runs:
        run.path, run.notes = bundles.get_origin(run.path), [*map(bundles.rename, run.notes)]
    left_out = [*map(bundles.rename, left_out)]
    if not runs:
        more = f" (and {len(left_out) - 1} more that cannot be read)" if len(left_out) > 1 else ""
        raise UserError(left_out[0] + more)
    comparison = _compare(runs, options, left_out)
    comparison.notes[:0] = notes  # first, because they say which runs are compared
    return comparison


def _compare(runs: list[Run], options: CompareOptions, left_out: list[str]) -> Comparison:
    """Compare the runs, or their groups of seeds."""
    if not options.has_groups:
        return compare(runs, options.tolerances, options.reference, left_out)
    from common.compare.group_verdict import compare_seeds  # imported here because SciPy takes long to import

    margins = parse_margins(options.margin, options.margins)
    try:
        return compare_seeds(runs, options.tolerances, margins, options.reference, left_out)
    except UserError as error:
        raise UserError(f"{error} (left out: {left_out[0]})" if left_out else str(error)) from error


def _read_runs(
    options: CompareOptions,
    run_dirs: Sequence[Path],
    external: Sequence[tuple[str, Path]],
    failures: Mapping[Path, str],
) -> tuple[list[Run], list[str], list[str]]:
    """Return the runs, the reasons why others cannot be read, and notes.

    Args:
        options: The options of the command.
        run_dirs: Run directories, or directories with runs below them.
        external: Name and path of each external run.
        failures: Reasons why training runs failed, or why bundles cannot be read, by their paths.
    """
    notes: list[str] = []
    if run_dirs or external or failures:
        paths, left_out = find_named_runs(run_dirs)
    elif options.has_groups:  # the older runs are other seeds
        paths, left_out = find_named_runs([Path(options.runs)])
    else:
        paths, left_out, notes = find_newest_runs(Path(options.runs))
    runs, unreadable = load_runs(paths)
    external_runs, unreadable_files = load_external_runs(external, options.columns)
    # In groups of seeds, a run that diverged is a result; `compare_seeds` refuses a run that failed for another reason.
    compared = {run.path for run in runs} if options.has_groups else set()
    left_out += [reason for path, reason in failures.items() if path not in compared]
    return [*runs, *external_runs], [*left_out, *unreadable, *unreadable_files], notes


def write_reports(comparison: Comparison, command_line: CommandLine) -> None:
    """Print the comparison, write the reports and the pictures, and print their paths."""
    options = command_line.options
    for reason in comparison.left_out:
        print(f"left out: {escape_control_characters(reason)}", file=sys.stderr)
    print_comparison(comparison)
    output = Path(options.output)
    pictures: list[Path] = []
    if options.pictures is not None:
        from common.report.pictures import write_pictures  # imported here because matplotlib takes long to import

        pictures = write_pictures(comparison, Path(options.pictures))
    reports = (
        write_markdown(comparison, output, pictures),
        write_page(comparison, output),
        write_json(comparison, output),
    )
    for path in (*reports, *pictures):
        print(path)


if __name__ == "__main__":
    sys.exit(main())
