"""The table and the plot of benchmarks/network.py."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from plotly.subplots import make_subplots

NOTES = "network_notes.md"  # a person's comments on the numbers, beside the table


def write_report(
    directory: Path, rows: list[dict[str, Any]], fitted: list[dict[str, Any]], size: int, browser: str | None
) -> str:
    """Write network.md and network.png (network.html where there is no browser to draw it). Returns the table."""
    lines = [f"Gradients of {size / 1e6:.1f} MB; two ranks, one on each host.", ""]
    lines += ["| link | alpha | 1 / beta | computing alone |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {fit['mbit']} Mbit/s | {fit['alpha'] * 1e3:.2f} ms | {8e-6 / fit['beta']:.0f} Mbit/s | "
        f"{fit['computing']:.3f} s a step |"
        for fit in fitted
    ]
    lines += ["", "| link | setting | steps/s | predicted | measured / predicted |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row['mbit']} Mbit/s | {row['setting']} | {1 / row['measured']:.2f} | {1 / row['predicted']:.2f} | "
        f"{row['predicted'] / row['measured']:.2f} |"
        for row in rows
    ]
    table = "\n".join(lines)
    notes = Path(__file__).with_name(NOTES).read_text()
    (directory / "network.md").write_text(f"{notes.replace('TABLE', table)}")
    _draw(rows, directory, browser)
    return table


def _draw(rows: list[dict[str, Any]], directory: Path, browser: str | None) -> None:
    links = list(dict.fromkeys(row["mbit"] for row in rows))
    figure = make_subplots(1, len(links), shared_yaxes=True, subplot_titles=[f"{mbit} Mbit/s" for mbit in links])
    for column, mbit in enumerate(links, 1):
        of_link = [row for row in reversed(rows) if row["mbit"] == mbit]
        names = [row["setting"] for row in of_link]
        measured, predicted = ([1 / row[key] for row in of_link] for key in ("measured", "predicted"))
        figure.add_bar(
            y=names, x=measured, orientation="h", name="measured", marker_color="#3b6ea8", row=1, col=column,
            showlegend=column == 1,
        )  # fmt: skip
        figure.add_scatter(
            y=names, x=predicted, mode="markers", name="predicted (alpha-beta)", row=1, col=column,
            marker={"color": "#d1495b", "symbol": "line-ns-open", "size": 18, "line": {"width": 3}},
            showlegend=column == 1,
        )  # fmt: skip
    figure.update_xaxes(title="steps per second", rangemode="tozero")
    figure.update_layout(
        template="plotly_white", width=1200, height=420, margin={"l": 10, "r": 20, "t": 60, "b": 50},
        legend={"orientation": "h", "y": 1.2, "x": 0}, font={"size": 13},
    )  # fmt: skip
    if browser is None:
        figure.write_html(directory / "network.html")
        return
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "network.html")
        figure.write_html(page, config={"displayModeBar": False})
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1216,436"]
        subprocess.run(
            [browser, *options, "--virtual-time-budget=5000", f"--screenshot={directory / 'network.png'}", str(page)],
            check=True,
            capture_output=True,
        )
