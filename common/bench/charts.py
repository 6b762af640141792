"""The charts of a benchmark's page, as plotly.js traces and layouts. The page adds the colours of its theme."""

from html import escape
from typing import Any

from common.report.style import COLOURS


def charts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One dict per chart: title, caption, plotly's data and layout. result: the content of bench.json."""
    contestants, reference = result["contestants"], result["settings"]["reference"]
    found = [
        _bars(
            "Speed",
            f"Examples per second over those of {reference} in the same round: median and quartiles.",
            "ratio",
            contestants,
        ),
        _rounds(contestants),
    ]
    if any(each["utilisation"] for each in contestants):
        caption = "Useful operations over the rate of matrix products in the same round: median and quartiles."
        found.append(_bars("Utilisation", caption, "utilisation", contestants, ".0%"))
    if any(each["scaling_efficiency"] for each in contestants):
        caption = "Speed over that of one replica in the same round: median and quartiles."
        found.append(_bars("Scaling", caption, "scaling_efficiency", contestants))
    return found + [_timeline(each) for each in contestants if each["timeline"]]


def _bars(title: str, caption: str, key: str, contestants: list[dict[str, Any]], form: str = "") -> dict[str, Any]:
    """A bar for each contestant that has this figure, with its quartiles."""
    having = [(index, each) for index, each in enumerate(contestants) if each[key]]
    spreads = [each[key] for _, each in having]
    trace = {
        "type": "bar",
        "x": [escape(each["name"]) for _, each in having],
        "y": [spread["median"] for spread in spreads],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [spread["upper"] - spread["median"] for spread in spreads],
            "arrayminus": [spread["median"] - spread["lower"] for spread in spreads],
        },
        "marker": {"color": [COLOURS[index % len(COLOURS)] for index, _ in having]},
    }
    layout = {"showlegend": False, "xaxis": {}, "yaxis": {"tickformat": form, "rangemode": "tozero"}}
    return {"title": title, "caption": caption, "data": [trace], "layout": layout}


def _rounds(contestants: list[dict[str, Any]]) -> dict[str, Any]:
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": escape(each["name"]),
            "x": list(range(1, len(each["rounds"]["examples"]) + 1)),
            "y": each["rounds"]["examples"],
            "line": {"color": COLOURS[index % len(COLOURS)]},
        }
        for index, each in enumerate(contestants)
    ]
    layout = {"xaxis": {"title": {"text": "round"}, "dtick": 1}, "yaxis": {"rangemode": "tozero"}}
    return {"title": "Every block", "caption": "Examples per second in each round.", "data": data, "layout": layout}


def _timeline(contestant: dict[str, Any]) -> dict[str, Any]:
    """A lane for each phase of one step; a layer has the same colour in each."""
    names = dict.fromkeys(name for parts in contestant["timeline"].values() for name, _, _ in parts)
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [lane] * len(parts),
            "base": [start for _, start, _ in parts],
            "x": [end - start for _, start, end in parts],
            "text": [name for name, _, _ in parts],
            "hovertemplate": "%{text}: %{base:.2f} ms + %{x:.2f} ms<extra></extra>",
            "textposition": "inside",
            "insidetextanchor": "middle",
            "marker": {"color": [colours[name] for name, _, _ in parts], "opacity": 0.85},
        }
        for lane, parts in contestant["timeline"].items()
    ]
    split = contestant["time_split"]
    hidden, exposed = split["reduce, hidden"], split["reduce, exposed"]
    share = f" Of the time of reductions {hidden / (hidden + exposed):.0%} is hidden." if hidden + exposed else ""
    return {
        "title": f"A step of {contestant['name']}",
        "caption": f"The last of the five steps that its first rank profiled; milliseconds.{share}",
        "data": data,
        "layout": {
            "barmode": "overlay",
            "showlegend": False,
            "xaxis": {"title": {"text": "ms"}},
            "yaxis": {"autorange": "reversed"},
        },
        "wide": True,
    }
