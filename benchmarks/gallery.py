"""Train the runs of the gallery again: python -m benchmarks.gallery [REPORT ...] writes docs/gallery/REPORT/RUN.

`make gallery` makes the pages of what is there.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import OmegaConf

from common.compare.train_missing import plan_runs, train_missing

GALLERY = Path("docs/gallery")
FILES = ("metrics.jsonl", "evals.jsonl", "traffic.jsonl", "summary.json")
DIGITS = ("experiment=demo", "train.steps=200", "train.eval_every=50")
# Of each report: what is run, and with which keys.
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
    failed: list[str] = []
    for name in names or REPORTS:
        shutil.rmtree(GALLERY / name, ignore_errors=True)
        for runs, overrides in REPORTS[name]:
            with TemporaryDirectory() as temporary:
                trainings = plan_runs(runs, overrides, Path(temporary))
                failed += train_missing(trainings)
                for each in trainings:
                    keep(each.directory, GALLERY / name / each.title.replace(" ", "-").replace("=", "-"))
    print("\n".join(failed))
    return 1 if failed else 0


def keep(run_dir: Path, place: Path) -> None:
    """Copy what a comparison reads, without the places of this machine."""
    place.mkdir(parents=True)
    for file in FILES:
        if (run_dir / file).exists():
            shutil.copy(run_dir / file, place)
    config = OmegaConf.load(run_dir / "config.yaml")
    config.run_dir, config.resume = f"runs/{place.name}", None
    OmegaConf.save(config, place / "config.yaml")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
