"""Draw the picture of docs/diagnosis.md, which follows a model that was ported from PyTorch to Keras with bugs.

`python -m docs.draw_story` trains the port while its bugs are fixed one by one, and draws how far it is from PyTorch.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from common.report.style import COLOURS
from common.training.rows import read_rows

STAGES = {  # labels by the function of examples/resnet/naive_keras.py that builds the model of a stage
    "build": "as written",
    "build_padded_alike": "padding fixed",
    "build_with_epsilon": "and epsilon",
    "build_with_momentum": "and momentum",
}
OVERRIDES = ["data=arrays", "data.channels=[images]", "optimizer.learning_rate=0.01", "schedule=constant"]
OVERRIDES += ["train.steps=100", "train.eval_every=10", "train.precision=float64", "model.prove=false"]
SMALLEST = 1e-17  # equal losses are drawn here, because a logarithmic axis has no zero


def train(directory: Path, framework: str, factory: str) -> Path:
    """Train one model. Returns its run directory."""
    run_dir = directory / f"{framework}-{factory}"
    files = [f"data.{split}={directory}/data/{split}.npz" for split in ("train", "validation")]
    model = ["model=custom", "model.torch=examples.resnet.model_torch:build"]
    model += [f"model.tf=examples.resnet.naive_keras:{factory}"]
    directories = [f"run_dir={run_dir}", f"cache_dir={directory / 'cache'}"]
    command = [sys.executable, "-m", f"{framework}_impl.train", *model, *files, *directories, *OVERRIDES]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run_dir


def main() -> None:
    """Train the PyTorch model and every stage of the port, and draw the differences of their losses."""
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.6), sharey=True, layout="constrained")
    with TemporaryDirectory() as name:
        directory = Path(name)
        subprocess.run([sys.executable, "-m", "examples.resnet.data", str(directory / "data")], check=True)
        reference = train(directory, "torch", "build")
        for index, (factory, label) in enumerate(STAGES.items()):
            port = train(directory, "tf", factory)
            for axes, file in zip(panels, ("metrics.jsonl", "evals.jsonl"), strict=True):
                rows = list(zip(read_rows(reference / file), read_rows(port / file), strict=True))
                differences = [max(abs(a["loss"] - b["loss"]), SMALLEST) for a, b in rows]
                steps = [row["step"] for row, _ in rows]
                axes.plot(steps, differences, color=COLOURS[index], label=label, lw=5 - index, marker=".")
                print(f"{label}: {file} {max(differences):.1e}")
    for axes, title in zip(panels, ("training loss", "validation loss"), strict=True):
        axes.set(yscale="log", xlabel="step", title=title)
        axes.grid(color="#e9edf1")
    panels[0].set_ylabel("difference from PyTorch")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.savefig("docs/diagnosis_story.png", dpi=110)


if __name__ == "__main__":
    main()
