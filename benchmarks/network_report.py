"""The table and the plot of benchmarks/network.py."""

from dataclasses import dataclass
from pathlib import Path

NOTES = "network_notes.md"  # comments on the numbers, with a place for the table


@dataclass(frozen=True)
class LinkMeasurement:
    """A link between two hosts, as the all-reduces use it.

    Attributes:
        mbit: the limit of the link, in Mbit/s.
        alpha: seconds for a message.
        beta: seconds for a byte.
        computing: seconds that a rank computes for a step without communication.
    """

    mbit: int
    alpha: float
    beta: float
    computing: float


@dataclass(frozen=True)
class SettingMeasurement:
    """The seconds of a step with one setting over one link, measured and predicted."""

    mbit: int
    setting: str
    measured: float
    predicted: float


def write_report(
    directory: Path, measurements: list[SettingMeasurement], links: list[LinkMeasurement], gradient_bytes: int
) -> str:
    """Write network.md and network.png. Return the table."""
    lines = [f"Gradients of {gradient_bytes / 1e6:.1f} MB; two ranks, one on each host.", ""]
    lines += ["| link | alpha | 1 / beta | computing alone |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {link.mbit} Mbit/s | {link.alpha * 1e3:.2f} ms | {8e-6 / link.beta:.0f} Mbit/s | "
        f"{link.computing:.3f} s a step |"
        for link in links
    ]
    lines += ["", "| link | setting | steps/s | predicted | measured / predicted |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row.mbit} Mbit/s | {row.setting} | {1 / row.measured:.2f} | {1 / row.predicted:.2f} | "
        f"{row.predicted / row.measured:.2f} |"
        for row in measurements
    ]
    table = "\n".join(lines)
    notes = Path(__file__).with_name(NOTES).read_text()
    (directory / "network.md").write_text(f"{notes.replace('TABLE', table)}")
    draw(measurements, directory / "network.png")
    return table


def draw(measurements: list[SettingMeasurement], path: Path) -> None:
    """Draw the steps per second of every setting, measured and predicted, with one panel for each link."""
    from matplotlib.figure import Figure

    links = list(dict.fromkeys(row.mbit for row in measurements))
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, len(links), sharey=True, squeeze=False)[0]
    for panel, mbit in zip(panels, links, strict=True):
        rows = [row for row in reversed(measurements) if row.mbit == mbit]
        names = [row.setting for row in rows]
        bars = panel.barh(names, [1 / row.measured for row in rows], color="#3b6ea8", label="measured")
        marks = panel.scatter(
            [1 / row.predicted for row in rows], names, marker="|", s=320, linewidths=3, color="#d1495b", zorder=3,
            label="predicted (alpha-beta)",
        )  # fmt: skip
        panel.set_title(f"{mbit} Mbit/s")
        panel.set_xlabel("steps per second")
        panel.set_xlim(left=0)
        panel.grid(axis="x", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=[bars, marks], loc="outside upper left", ncols=2, frameon=False)
    figure.savefig(path, dpi=100)
