"""Variants of an optimizer's formula, and the search for those that explain an update of the weights.

A variant is the formula of the run's config with one change, such as another epsilon. The causes and sentences describe
the change in a diagnosis.
"""

from collections.abc import Iterator
from dataclasses import replace

from common.diagnose.explain.update_formula import OptimizerUpdate, UpdateFormula, measure_error
from common.diagnose.explain.update_settings import EPSILON_PLACES, UpdateSettings

MOST_CHANGES = 4  # largest number of changes that are combined
SMALLEST_GAIN = 2  # factor by which each change must reduce the error
EXPLAINED_SHARE = 1e-4  # share of the initial error that may remain
OTHER_EPSILONS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 0.0)
OTHER_DECAYS = (0.01, 0.001, 0.0001, 0.004, 0.1)
DEFAULT_DECAYS = (0.01, 0.004)  # defaults of PyTorch's and of Keras's AdamW


def find_variants(formula: UpdateFormula, update: OptimizerUpdate) -> list[UpdateFormula]:
    """Return the variants that explain an update, the change with the largest effect first.

    Each variant contains the changes of the variants before it, so that the last one reproduces the update; its `cause`
    names only its own change. The search is greedy. The list is empty if it finds no combination.
    """
    chosen: list[UpdateFormula] = []
    error = initial_error = min(1.0, measure_error(formula, update))
    allowed = max(update.tolerance, initial_error * EXPLAINED_SHARE)
    while error > allowed and len(chosen) < MOST_CHANGES:
        known_causes = {cause for variant in chosen for cause in variant.causes}
        variants = [variant for variant in list_variants(formula, update) if known_causes.isdisjoint(variant.causes)]
        formula = min(variants, key=lambda variant: measure_error(variant, update))
        remaining = measure_error(formula, update)
        if remaining > error / SMALLEST_GAIN:
            return []
        error = remaining
        chosen.append(formula)
    return chosen if error <= allowed else []


def list_variants(formula: UpdateFormula, update: OptimizerUpdate) -> Iterator[UpdateFormula]:
    """Yield the variants of a formula, each with one change."""
    for cause, rate, sentence in list_rates(replace(update.settings, rate=formula.rate), update.replicas):
        yield replace(formula, rate=rate, cause=cause, sentence=sentence)
    if formula.kind == "adam":
        yield from _vary_epsilon(formula)
        sentence = "Adam's bias correction is missing"
        yield replace(formula, has_bias_correction=False, cause="bias_correction", sentence=sentence)
    yield from _vary_decay(formula)


def list_rates(settings: UpdateSettings, replicas: int) -> Iterator[tuple[str, float, str]]:
    """Yield the name of each fault of the learning rate, the rate that it gives, and a sentence."""
    rate = settings.rate
    rates = {
        "learning_rate_scaled": (rate * replicas, f"the learning rate is multiplied by the {replicas} replicas"),
        "learning_rate_divided": (rate / replicas, f"the learning rate is divided by the {replicas} replicas"),
        "learning_rate_root": (rate * replicas**0.5, f"the learning rate is multiplied by sqrt({replicas})"),
        "schedule_late": (settings.previous_rate, "the schedule is a step late"),
        "schedule_early": (settings.next_rate, "the schedule is a step early"),
        "no_schedule": (settings.base_rate, "the learning rate is constant: the schedule is not applied"),
    }
    for cause, (other_rate, sentence) in rates.items():
        if other_rate != rate:
            yield cause, other_rate, sentence


def _vary_epsilon(formula: UpdateFormula) -> Iterator[UpdateFormula]:
    """Yield variants with another epsilon, another place of epsilon in the formula, or both."""
    for place in EPSILON_PLACES:
        for epsilon in dict.fromkeys((formula.epsilon, *OTHER_EPSILONS)):
            has_other_place, has_other_value = place != formula.epsilon_place, epsilon != formula.epsilon
            value_sentence = f"epsilon is {epsilon:g}, not {formula.epsilon:g}"
            if has_other_place and has_other_value:
                cause, sentence = "epsilon+epsilon_place", f"{value_sentence}, and is added {place}"
            elif has_other_place:
                cause, sentence = "epsilon_place", f"epsilon is added {place}"
            elif has_other_value:
                cause, sentence = "epsilon", value_sentence
            else:
                continue
            yield replace(formula, epsilon_place=place, epsilon=epsilon, cause=cause, sentence=sentence)


def _vary_decay(formula: UpdateFormula) -> Iterator[UpdateFormula]:
    if not formula.decay:
        for decay in OTHER_DECAYS:
            sentence = f"the weights decay by {decay:g}, decoupled"
            yield replace(formula, decay=decay, cause="weight_decay", sentence=sentence)
        return
    yield replace(formula, decay=0.0, cause="no_weight_decay", sentence="the weights do not decay")
    sentence = "biases and normalizations do not decay"
    yield replace(formula, decays_vectors=False, cause="weight_decay_on_biases", sentence=sentence)
    sentence = "the weights decay twice as much"
    yield replace(formula, decay=2 * formula.decay, cause="weight_decay_twice", sentence=sentence)
    sentence = "the weight decay is not multiplied by the learning rate"
    decay_without_rate = formula.decay / (formula.rate or 1.0)
    yield replace(formula, decay=decay_without_rate, cause="weight_decay_without_rate", sentence=sentence)
    for decay in DEFAULT_DECAYS:
        if decay != formula.decay:
            sentence = f"the weight decay is {decay:g}, not {formula.decay:g}"
            yield replace(formula, decay=decay, cause="weight_decay", sentence=sentence)
