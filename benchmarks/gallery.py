"""Train the runs of the gallery again: python -m benchmarks.gallery [REPORT ...] writes docs/gallery/REPORT/RUN.

The gallery is a set of example reports. `make gallery` compares these runs and writes the pages.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import OmegaConf

from common.compare.train_missing import plan_runs, train_missing
from common.config.saved_config import CONFIG, read_values

GALLERY = Path("docs/gallery")
FILES = ("metrics.jsonl", "evals.jsonl", "traffic.jsonl", "summary.json")
DIGITS = ("experiment=demo", "train.steps=200", "train.eval_every=50")
# For each report, the runs as FRAMEWORK:STRATEGY with the overrides of their training config.
REPORTS: dict[str, list[tuple[list[str], tuple[str, ...]]]] = {
    "agreement": [
        (["torch:single", "tf:single"], DIGITS),
        (["torch:ddp", "tf:mirrored", "tf:multiworker"], (*DIGITS, "strategy.replicas=2")),
        (["torch:allreduce"], (*DIGITS, "strategy.replicas=3")),
    ],
    "asynchrony": [
        (["torch:ddp"], (*DIGITS, "strategy.replicas=2")),
        (["torch:parameter_server"], (*DIGITS, "strategy.replicas=1,2,4")),
    ],
    "diverging_port": [  # each framework's own AdamW
        (["torch:single", "tf:single"], ("model=bert_tiny", "optimizer.semantics=native", "train.steps=150")),
    ],
    "memory": [
        (["torch:dp", "torch:ddp"], ("model=bert_mini", "strategy.replicas=2,4", "train.steps=30")),
    ],
}


def main(names: list[str]) -> int:
    """Train the runs of the named reports; of all reports by default. Return the exit code."""
    failures: list[str] = []
    for name in names or REPORTS:
        shutil.rmtree(GALLERY / name, ignore_errors=True)
        for runs, overrides in REPORTS[name]:
            with TemporaryDirectory() as temporary:
                planned = plan_runs(runs, overrides, Path(temporary), {})
                failures += train_missing(planned).values()
                for run in planned:
                    copy_run(run.directory, GALLERY / name / run.title.replace(" ", "-").replace("=", "-"))
    print("\n".join(failures))
    return 1 if failures else 0


def copy_run(run_dir: Path, target: Path) -> None:
    """Copy the files that a comparison reads, without paths of this machine."""
    target.mkdir(parents=True)
    for file in FILES:
        if (run_dir / file).exists():
            shutil.copy(run_dir / file, target)
    values = {**read_values(run_dir / CONFIG), "run_dir": f"runs/{target.name}", "resume": None}
    OmegaConf.save(OmegaConf.create(values), target / CONFIG)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
