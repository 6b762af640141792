"""Export a run's weights as a model directory in Hugging Face format: python -m common.export RUN_DIR OUT [--best]."""

import argparse
from pathlib import Path

from common.config.command_line import report_user_errors
from common.run.export import export_model


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m common.export", description=__doc__.partition("\n")[0])
    parser.add_argument("run_dir", type=Path, help="the directory of a run")
    parser.add_argument("out", type=Path, help="the directory to create")
    parser.add_argument("--best", action="store_true", help="the checkpoint with the lowest validation loss")
    options = parser.parse_args()
    with report_user_errors():
        checkpoint = export_model(options.run_dir, options.out, options.best)
        print(f"{options.out}: the model of {checkpoint.directory}")


if __name__ == "__main__":
    main()
