"""Measure false alarms and planted faults of the verdict on groups of seeds, into docs/statistics_power.png.

The measured table, which docs/statistics.md has, is printed as Markdown.
"""

import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.seeds.train import FAULTS, STEPS, Contestant, TrainedSeeds, pair_values, train
from common.report.style import COLOURS
from common.statistics.judge import Judgement, Values, choose_margin, judge
from common.statistics.verdicts import CURVE

PICTURE = Path(__file__).parents[2] / "docs" / "statistics_power.png"
EQUAL_PAIRS, EQUAL_SEEDS = 100, (3, 5, 10)
FAULT_SEEDS, NUMBERS = 200, (2, 3, 5, 7, 10, 15, 20)  # NUMBERS: seeds of each group
GROUPS = 10  # disjoint groups of each number of seeds
POINTS = 50


class Shares(NamedTuple):
    """Shares of the groups with each result."""

    shown: float  # a shift was shown, even one below its margin
    different: float
    equivalent: float


Powers = dict[int, Shares]  # by number of seeds


def main() -> int:
    """Train, judge, print the tables and draw the picture."""
    torch.set_num_threads(1)
    base = train(Contestant(), range(FAULT_SEEDS))
    contestants = {name: train(fault, range(FAULT_SEEDS)) for name, fault in FAULTS.items()}
    contestants["bfloat16, no fault"] = train(Contestant(bfloat16=True), range(FAULT_SEEDS))
    print_equal_groups()
    paired = {name: measure_power(base, trained) for name, trained in contestants.items()}
    unpaired = {name: measure_power(base, trained, FAULT_SEEDS // 2) for name, trained in contestants.items()}
    deviation = np.std(base.metrics["validation_loss"], ddof=1)
    for name, trained in contestants.items():
        shift = np.mean(trained.metrics["validation_loss"] - base.metrics["validation_loss"]) / deviation
        needed = [_find_number(powers[name], 0) for powers in (paired, unpaired)]
        equivalent = [_find_number(powers[name], 2) for powers in (paired, unpaired)]
        five = " | ".join(f"{share:.0%}" for share in (*paired[name][5], *unpaired[name][5]))
        print(f"| {name} | {shift:+.2f} | {' | '.join(needed + equivalent)} | {five} |", flush=True)
    draw(paired, unpaired)
    print(f"{time.process_time():.0f} s of processor time")
    return 0


def print_equal_groups() -> None:
    """Judge pairs of groups of equal runs, whose seeds all differ, and print the verdicts."""
    trained = train(Contestant(), range(10**6, 10**6 + 2 * EQUAL_PAIRS * max(EQUAL_SEEDS)))
    for seeds in EQUAL_SEEDS:
        starts = range(0, 2 * EQUAL_PAIRS * seeds, 2 * seeds)
        judgements = [judge_seeds(trained, trained, range(start, start + seeds), seeds) for start in starts]
        counts = Counter(judgement.verdict for judgement in judgements)
        print(f"| {seeds} | {EQUAL_PAIRS} | {counts['different']} | {counts['undecided']} | {counts['equivalent']} |")


def measure_power(base: TrainedSeeds, contestant: TrainedSeeds, offset: int = 0) -> Powers:
    """Return the shares of the groups with each result, by number of seeds. With an offset, seeds make no pairs."""
    powers = {}
    for number in NUMBERS:
        starts = range(0, GROUPS * number, number)
        judgements = [judge_seeds(base, contestant, range(start, start + number), offset) for start in starts]
        verdicts = [judgement.verdict for judgement in judgements]
        results = (sum(map(shows_shift, judgements)), verdicts.count("different"), verdicts.count("equivalent"))
        powers[number] = Shares(*(count / GROUPS for count in results))
    return powers


def judge_seeds(reference: TrainedSeeds, contestant: TrainedSeeds, rows: range, offset: int) -> Judgement:
    """Judge some seeds of two contestants. With an offset, the contestant's seeds are others."""
    chosen, others = [*rows], [(row + offset) % len(contestant.losses) for row in rows]
    curves = (_average(reference.losses[chosen]), _average(contestant.losses[others]))
    values = {
        name: Values(pair.reference[chosen], pair.contestant[others])
        for name, pair in pair_values(reference, contestant).items()
    }
    named = {CURVE: Values(curves[0].mean(1), curves[1].mean(1)), **values}
    return judge(values, curves, {name: choose_margin(pair) for name, pair in named.items()})


def shows_shift(judgement: Judgement) -> bool:
    """Check whether a shift was shown in a metric or in the residuals, even one below its margin."""
    one_sided = judgement.residuals is not None and judgement.residuals.are_shown_one_sided
    return one_sided or any(result.has_shift for result in judgement.metrics.values())


def _average(losses: np.ndarray) -> np.ndarray:
    return losses.reshape(len(losses), POINTS, STEPS // POINTS).mean(2)


def _find_number(powers: Powers, column: int) -> str:
    """Return the first number of seeds with a result in 80 % of the groups."""
    return next((str(number) for number in NUMBERS if powers[number][column] >= 0.8), f"> {NUMBERS[-1]}")


def draw(paired: dict[str, Powers], unpaired: dict[str, Powers]) -> None:
    """Draw the share of the groups in which a shift was shown, over the number of seeds."""
    figure, all_axes = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained", sharey=True)
    titles = ("pairs: same data order and weights", "no pairs: other data order and weights")
    for axes, title, by_name in zip(all_axes, titles, (paired, unpaired), strict=True):
        for colour, (name, powers) in zip(COLOURS, by_name.items(), strict=False):
            shown = [shares.shown for shares in powers.values()]
            axes.plot([*powers], shown, "o-", markersize=4, color=colour, label=name, clip_on=False)
        axes.axhline(0.05, color="0.6", linestyle="--", linewidth=1)
        axes.set(title=title, xlabel="seeds of each group", ylim=(0, 1.02), xlim=(2, NUMBERS[-1]))
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].set_ylabel("groups with a shift shown")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
