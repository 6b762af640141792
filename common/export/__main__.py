"""Export a run for other programs, or a run or a record for another machine.

`RUN_DIR OUT` writes the weights of a run as a model directory in Hugging Face format. `bundle=PATH` writes a run
directory or a record as one file, which common.diagnose, common.compare and this command take in place of the
directory. `unpack=BUNDLE OUT` makes a directory of it again.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.config.command_line import report_user_errors
from common.errors import UserError, report_write_errors
from common.records.bundle import is_bundle, open_bundles, unpack_bundle
from common.run.export import export_model
from common.run.export_bundle import export_bundle
from common.training.stop import interrupt_on_signals

BUNDLE, UNPACK, OUT = "bundle=", "unpack=", "out="


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m common.export", description=__doc__)
    parser.add_argument("source", metavar="RUN_DIR | bundle=PATH | unpack=BUNDLE", help="what to export")
    parser.add_argument(
        "out", type=Path, nargs="?", help="the directory or file to create; of a bundle, NAME.zip by default"
    )
    parser.add_argument("--best", action="store_true", help="the checkpoint with the best validation score")
    parser.add_argument("--average", action="store_true", help="the average of the weights, of ema.* or swa.*")
    options = parser.parse_args(arguments)
    source, out = options.source, options.out
    with report_user_errors(), interrupt_on_signals():
        for flag in ("best", "average"):
            if getattr(options, flag) and source.startswith((BUNDLE, UNPACK)):
                raise UserError(f"--{flag}: is for the weights of a run; remove it")
        if str(out).startswith(OUT):
            raise UserError(f"{out}: the path has no key; write {str(out).removeprefix(OUT)}")
        if source.startswith(BUNDLE):
            _export_bundle(Path(source.removeprefix(BUNDLE)), out)
        elif out is None:
            raise UserError(f"{source}: give the path to create, too, or bundle={source} for one file")
        elif source.startswith(UNPACK):
            _unpack(Path(source.removeprefix(UNPACK)), out)
        else:
            with open_bundles([Path(source)]) as bundles:
                checkpoint = export_model(bundles.locate(Path(source)), out, options.best, options.average)
                weights = "the averaged model" if options.average else "the model"
                print(bundles.rename(f"{out}: {weights} of {checkpoint.directory}"))


def _export_bundle(source: Path, out: Path | None) -> None:
    path, sizes = export_bundle(source, out)
    parts = ", ".join(f"{part} {_format_size(size)}" for part, size in sizes.items())
    print(f"{path}: {_format_size(path.stat().st_size)} ({parts})")


def _unpack(bundle: Path, out: Path) -> None:
    if not is_bundle(bundle):
        raise UserError(f"{bundle}: not a bundle; make one with python -m common.export bundle=PATH")
    if os.path.lexists(out):
        raise UserError(f"{out}: exists; choose another path")
    with report_write_errors(out), tempfile.TemporaryDirectory(dir=out.parent, prefix="lockstep-") as temporary:
        partial = Path(temporary, "bundle")
        unpack_bundle(bundle, partial)
        partial.rename(out)
    print(out)


def _format_size(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


if __name__ == "__main__":
    main()
