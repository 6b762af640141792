"""The data of the drawings on a benchmark's page: bars with quartiles, the speed in every round, one profiled step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.bench.result import BenchResult, SpreadRow
from common.profile.lanes import LaneSpan
from common.profile.profile import Profile
from common.report.bars import Bar, BarChart
from common.report.step_chart import StepChart, build_step_chart


@dataclass(frozen=True)
class StepTimeline:
    """One profiled step of a contestant."""

    contestant: str  # its name
    chart: StepChart
    hidden_share: float | None  # share of the time of reductions in which the rank computes; None without reductions


def build_bar_charts(result: BenchResult) -> list[BarChart]:
    """Return the bar charts that have figures. A group of bars has the index of its contestant."""
    contestants, reference = result["contestants"], result["settings"]["reference"]
    charts = [
        _build_bars(
            "Speed",
            f"Speed divided by the speed of {reference} in the same round: median and quartiles.",
            [contestant["ratio"] for contestant in contestants],
            "{:.2f}".format,
        ),
        _build_bars(
            "Utilisation",
            "Useful operations per second, divided by the rate of matrix products in the same round: median and "
            "quartiles.",
            [contestant["utilisation"] for contestant in contestants],
            "{:.0%}".format,
        ),
        _build_bars(
            "Scaling",
            "Speed over that of one replica in the same round: median and quartiles.",
            [contestant["scaling_efficiency"] for contestant in contestants],
            "{:.2f}".format,
        ),
    ]
    return [chart for chart in charts if chart.groups]


def _build_bars(
    title: str, caption: str, spreads: Sequence[SpreadRow | None], format_figure: Callable[[float], str]
) -> BarChart:
    """Return a bar for each contestant that has this figure; its width is a share of the largest upper quartile."""
    chart = BarChart(title, caption)
    widest = max((spread["upper"] for spread in spreads if spread), default=1.0)
    for index, spread in enumerate(spreads):
        if spread:
            median, lower, upper = spread["median"], spread["lower"], spread["upper"]
            text = f"{format_figure(median)} ({format_figure(lower)} to {format_figure(upper)})"
            chart.groups.append((index, [Bar("", text, median / widest, lower / widest, upper / widest)]))
    return chart


def collect_round_speeds(result: BenchResult) -> dict[str, list[float]]:
    """Return the examples per second of each contestant in every round."""
    return {contestant["name"]: contestant["rounds"]["examples"] for contestant in result["contestants"]}


def build_step_timelines(result: BenchResult) -> list[StepTimeline]:
    """Return the last profiled step of each contestant that was profiled."""
    timelines = []
    for contestant in result["contestants"]:
        split, timeline = contestant["time_split"], contestant["timeline"]
        if split and timeline:
            hidden, reduced = split["reduce, hidden"], split["reduce, hidden"] + split["reduce, exposed"]
            lanes = {name: [LaneSpan(*span) for span in lane] for name, lane in timeline.items()}  # JSON has lists
            chart = build_step_chart(Profile(split, lanes))
            timelines.append(StepTimeline(contestant["name"], chart, hidden / reduced if reduced else None))
    return timelines
