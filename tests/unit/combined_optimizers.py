"""Optimizers, schedules and parameter groups in combination, and the groups as formulas of their own.

A combination is the keys of the config. Each optimizer is combined with each schedule and each preset of groups. The
schedules that are missing here depend on evaluations (plateau) or on a function of the user.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from common.config.layout_optimizers import LayoutSettings
from common.config.parameter_groups import expand_groups
from common.config.schema import Config

STEPS, TOTAL, RATE, DECAY = 20, 25, 0.125, 0.03125
SHAPES = {
    "embeddings.weight": (5, 3),
    "layer.0.weight": (3, 3),
    "layer.0.bias": (3,),
    "layer.0.kernel": (3, 2, 2, 2),
    "layer.1.weight": (4, 3),
    "layer.1.bias": (6,),
    "head.weight": (2, 3),
}
LAYOUTS = {  # the steps to the layout of Keras's variable
    **dict.fromkeys(("layer.0.weight", "layer.1.weight"), "transpose 1 0"),
    "layer.0.kernel": "transpose 2 3 1 0",
    "layer.1.bias": "reshape 2 3",  # as an attention with heads has it
    "head.weight": "transpose 1 0",
}
KINDS = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "muon", "nadam", "adafactor", "adamax")
# Keras rounds constants to float32, so those here are exact in it.
MOMENTS = ("optimizer.beta1=0.875", "optimizer.beta2=0.96875")
KIND_KEYS = {
    "sgd": ("optimizer.momentum=0.5", "optimizer.nesterov=true"),
    "rmsprop": ("optimizer.rho=0.9375", "optimizer.momentum=0.5", "optimizer.centered=true"),
    "adagrad": ("optimizer.initial_accumulator=0.125",),
    "adadelta": ("optimizer.rho=0.9375",),
    "adafactor": ("optimizer.epsilon2=0.00390625", "optimizer.beta2_decay=-0.75", "optimizer.clip_threshold=1.25"),
    "muon": ("optimizer.momentum=0.5", "optimizer.adamw_match=embed*|head*", *MOMENTS),
    **dict.fromkeys(("adam", "adamw", "adamax", "nadam"), MOMENTS),
}
SCHEDULES = {
    "constant": (),
    "linear": (),
    "cosine": ("schedule.end_factor=0.25",),
    "polynomial": ("schedule.power=2", "schedule.end_factor=0"),
    "cosine_restarts": ("schedule.first_cycle_steps=5", "schedule.cycle_multiplier=2"),
    "step": ("schedule.step_size=7", "schedule.gamma=0.5"),
    "multi_step": ("schedule.milestones=[5,12]", "schedule.gamma=0.5"),
    "piecewise": ("schedule.boundaries=[4,9]", "schedule.factors=[0.5,1,0.25]"),
    "inverse_sqrt": ("schedule.timescale=10",),
    "exponential": ("schedule.gamma=0.9",),
    "one_cycle": ("schedule.base_momentum=0.5", "schedule.max_momentum=0.875"),
}
CYCLED = ("sgd", "adam", "adamw", "rmsprop", "adamax")  # the optimizers whose momentum one_cycle sets
PRESETS = {
    "no groups": "[]",
    "no decay": "[no_decay_on_bias_and_norm]",
    "layerwise": "[no_decay_on_bias_and_norm,{layerwise_decay:0.5},{match:head.*,weight_decay:0.0625}]",
}
# 0.5^3 for embeddings, 0.5^2 and 0.5 for layers
LAYERWISE = dict(zip(SHAPES, (0.125, 0.25, 0.25, 0.25, 0.5, 0.5, 1.0), strict=True))


def list_combinations(semantics: str, part: int, parts: int) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield optimizer, schedule, preset, and the keys of the config, of one part of all combinations.

    Each part has every optimizer and every preset, and is similar to the other parts. Each of 11 parts has an optimizer
    with only one schedule and all presets, each of 33 parts with only one schedule and one preset. No two optimizers of
    a part have the same schedule; the first part leaves out the constant one.
    """
    for i, kind in enumerate(KINDS):
        for (j, schedule), (k, preset) in product(enumerate(SCHEDULES), enumerate(PRESETS)):
            # This number is j - i - 1, modulo 11 schedules, and k - i - j, modulo 3 presets.
            if (12 * (j - i - 1) + 22 * (k - i - j)) % 33 % parts != part:
                continue
            optimizer = [f"optimizer={kind}", f"optimizer.semantics={semantics}", *KIND_KEYS.get(kind, ())]
            epsilon = [] if kind == "sgd" else ["optimizer.epsilon=0.0009765625"]
            common = [f"optimizer.learning_rate={RATE}", f"optimizer.weight_decay={DECAY}", *epsilon]
            groups = ["optimizer.max_grad_norm=null", f"optimizer.groups={PRESETS[preset]}", "train.precision=float64"]
            times = [f"schedule={schedule}", "schedule.warmup_steps=0", f"schedule.total_steps={TOTAL}"]
            cycled = ["schedule.cycle_momentum=true"] if schedule == "one_cycle" and kind in CYCLED else []
            yield kind, schedule, preset, [*optimizer, *common, *groups, *times, *SCHEDULES[schedule], *cycled]


def expand(config: Config) -> Config:
    """Return a config with its groups and layouts as the preparation of a run makes them."""
    optimizer = replace(config.optimizer, groups=expand_groups(config.optimizer.groups, SHAPES))
    if isinstance(optimizer, LayoutSettings) and optimizer.semantics == "keras":
        optimizer = replace(optimizer, keras_layouts=LAYOUTS)
    return replace(config, optimizer=optimizer)


def get_group(preset: str, name: str) -> tuple[float, float]:
    """Return the factor of the learning rate and the weight decay of a parameter."""
    decay = 0.0 if preset != "no groups" and name.endswith("bias") else DECAY
    if preset != "layerwise":
        return 1.0, decay
    return LAYERWISE[name], 0.0625 if name.startswith("head") else decay


def make_arrays(seed: int) -> dict[str, np.ndarray]:
    """Return an array for each parameter: weights, or the gradients of a step."""
    stream = np.random.default_rng(seed)
    return {name: stream.normal(size=shape) for name, shape in SHAPES.items()}
