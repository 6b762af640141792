"""Draw the picture of docs/crossed_wires.md: how far Keras's models are from PyTorch's while differences are removed.

`python -m docs.draw_crossed_wires [PAIR ...]` trains the stages of the pairs that are not trained yet, prints a table,
and draws the differences of the losses. It needs torchvision.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.crossed_wires.ladders import LADDERS
from benchmarks.crossed_wires.training import list_stages, train_keras, train_torch
from common.report.style import get_colour
from common.training.rows import Row, read_rows

FILES = {"metrics.jsonl": "training loss", "evals.jsonl": "validation loss"}
SMALLEST = 1e-17  # equal losses are drawn here, because a logarithmic axis has no zero


def main(pairs: Sequence[str]) -> None:
    """Train both models of every stage, print the largest differences, and draw all of them."""
    figure, panels = plt.subplots(2, len(pairs), figsize=(15, 6.4), sharex=True, sharey=True, squeeze=False)
    print("| pair | stage | training loss | validation loss |\n| --- | --- | --- | --- |")
    for column, pair in zip(panels.T, pairs, strict=True):
        stages = list_stages(pair)
        for index, stage in enumerate(stages):
            runs = train_torch(pair, stage), train_keras(pair, stage)
            largest = []
            for axes, file in zip(column, FILES, strict=True):
                steps, differences = compare_losses(*(read_rows(run / file) for run in runs))
                drawn = [max(difference, SMALLEST) for difference in differences]
                width = 1 + 0.7 * (len(stages) - index)  # if curves coincide, the wider ones below are seen
                axes.plot(steps, drawn, color=get_colour(index), label=stage.label, lw=width)
                largest.append(f"{max(differences):.1e}" if any(differences) else "0")
            print(f"| {' | '.join((pair, stage.label, *largest))} |", flush=True)
        column[0].set(title=pair, yscale="log")
        column[1].set_xlabel("step")
        handles, labels = column[0].get_legend_handles_labels()
        column[1].legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, fontsize=8)
    for row, name in zip(panels, FILES.values(), strict=True):
        row[0].set_ylabel(f"difference of the {name}")
        for axes in row:
            axes.grid(color="#e9edf1")
    figure.savefig(Path("docs/crossed_wires.png"), dpi=100, bbox_inches="tight")


def compare_losses(torch_rows: Sequence[Row], keras_rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Return the steps, and how far the losses of two runs are apart there."""
    rows = list(zip(torch_rows, keras_rows, strict=True))
    return [a["step"] for a, _ in rows], [abs(a["loss"] - b["loss"]) for a, b in rows]


if __name__ == "__main__":
    main(sys.argv[1:] or list(LADDERS))
