"""The drawings of a benchmark's page: bars with quartiles, the speed in every round, and one profiled step."""

from dataclasses import dataclass
from typing import Any

from common.profile.lanes import LaneSpan
from common.profile.profile import Profile
from common.report.bars import Bar, BarChart
from common.report.step_chart import StepChart, build_step_chart


@dataclass(frozen=True)
class StepTimeline:
    """One profiled step of a contestant. hidden_share: of the time of its reductions; None without reductions."""

    contestant: str
    chart: StepChart
    hidden_share: float | None


def charts(result: dict[str, Any]) -> list[BarChart]:
    """Return the bar charts for which contestants have figures; the index of a group is that of its contestant.

    Args:
        result: The content of bench.json.
    """
    contestants, reference = result["contestants"], result["settings"]["reference"]
    drawn = [
        _bars(
            "Speed",
            f"Examples per second over those of {reference} in the same round: median and quartiles.",
            "ratio",
            contestants,
            ".2f",
        ),
        _bars(
            "Utilisation",
            "Useful operations over the rate of matrix products in the same round: median and quartiles.",
            "utilisation",
            contestants,
            ".0%",
        ),
        _bars(
            "Scaling",
            "Speed over that of one replica in the same round: median and quartiles.",
            "scaling_efficiency",
            contestants,
            ".2f",
        ),
    ]
    return [chart for chart in drawn if chart.groups]


def _bars(title: str, caption: str, key: str, contestants: list[dict[str, Any]], number_format: str) -> BarChart:
    """Return a bar for each contestant that has this figure; its width is a share of the largest upper quartile."""
    chart = BarChart(title, caption)
    spreads = [(index, contestant[key]) for index, contestant in enumerate(contestants) if contestant[key]]
    widest = max((spread["upper"] for _, spread in spreads), default=1.0)
    for index, spread in spreads:
        median, lower, upper = (format(spread[name], number_format) for name in ("median", "lower", "upper"))
        ends = (spread[name] / widest for name in ("median", "lower", "upper"))
        chart.groups.append((index, [Bar("", f"{median} ({lower} to {upper})", *ends)]))
    return chart


def rounds(result: dict[str, Any]) -> dict[str, list[float]]:
    """Return each contestant's examples per second in every round."""
    return {contestant["name"]: contestant["rounds"]["examples"] for contestant in result["contestants"]}


def timelines(result: dict[str, Any]) -> list[StepTimeline]:
    """Return the last profiled step of each contestant that was profiled."""
    drawn = []
    for contestant in result["contestants"]:
        if contestant["timeline"]:
            split = contestant["time_split"]
            hidden, reduced = split["reduce, hidden"], split["reduce, hidden"] + split["reduce, exposed"]
            lanes = {name: [LaneSpan(*span) for span in lane] for name, lane in contestant["timeline"].items()}
            chart = build_step_chart(Profile(split, lanes))
            drawn.append(StepTimeline(contestant["name"], chart, hidden / reduced if reduced else None))
    return drawn
