"""Draw the picture of docs/performance.md from the tables in docs/performance: python -m docs.draw_performance."""

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from common.report.style import COLOURS

DOCUMENTS = Path(__file__).parent / "performance"
PANELS = {  # titles by the title of a section
    "all-MiniLM-L6-v2 on pairs of 26 tokens": "MiniLM, 26 tokens",
    "all-MiniLM-L6-v2 on pairs of 38 tokens": "MiniLM, 38 tokens",
    "BERT mini on the built-in corpus, all strategies": "BERT mini",
    "BERT tiny on the built-in corpus": "BERT tiny",
}
CONTESTANTS = {  # labels by the name of a contestant
    "hf_trainer": "Hugging Face Trainer",
    "accelerate": "Accelerate",
    "plain_ddp": "plain DDP loop",
    "keras_fit": "Keras fit",
    "plain_tf": "plain tf.function",
    "torch_ddp": "Lockstep ddp",
    "torch_ddp_bfloat16": "Lockstep ddp, bfloat16",
    "tf_mirrored": "Lockstep mirrored",
    "tf_mirrored_bfloat16": "Lockstep mirrored, bfloat16",
}


def read_ratios(title: str) -> dict[str, tuple[float, float, float]]:
    """Return the ratio of each contestant of a section, with its quartiles: median, lower, upper."""
    documents = "".join(path.read_text() for path in sorted(DOCUMENTS.glob("2*.md")))
    section = documents.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    ratios = {}
    for name, *cells in re.findall(r"^\| (\w+) \|.*?\| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", section, re.MULTILINE):
        if name in CONTESTANTS:
            median, lower, upper = (float(cell) for cell in cells)
            ratios[name] = median, lower, upper
    return ratios


def main() -> None:
    """Draw a panel for each section, with a bar for each contestant."""
    figure, panels = plt.subplots(1, len(PANELS), figsize=(11, 3.2), sharex=True, sharey=True, layout="constrained")
    names = list(CONTESTANTS)
    for axes, (title, label) in zip(panels, PANELS.items(), strict=True):
        ratios = read_ratios(title)
        for name, (median, lower, upper) in ratios.items():
            colour = COLOURS[6] if not name.startswith(("torch", "tf")) else COLOURS[name.startswith("tf")]
            errors = [[median - lower], [upper - median]]
            axes.barh(names.index(name), median, xerr=errors, color=colour, height=0.7, error_kw={"lw": 1})
            axes.text(upper + 0.05, names.index(name), f"{median:.2f}", va="center", fontsize=8)
        axes.axvline(1, color="#22272e", lw=0.8)
        axes.set(title=label, xlim=(0, 4.2))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), list(CONTESTANTS.values()))
    panels[0].invert_yaxis()
    figure.supxlabel("examples/s, compared with Hugging Face's Trainer", fontsize=9)
    figure.savefig(DOCUMENTS.parent / "performance.png", dpi=150)


if __name__ == "__main__":
    main()
