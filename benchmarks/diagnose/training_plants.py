"""Causes that are planted in data, configs, strategies and optimizers, and in low precision.

A diagnosis compares two training runs, A and B; B is the faulty one.
"""

from collections.abc import Iterator

from benchmarks.diagnose.model_plants import SIDES
from benchmarks.diagnose.plant import DROPOUT, FAULTY_STRATEGY, IMAGES, TEXT, Plant

PAIR = SIDES["tf"]  # A in PyTorch, B in TensorFlow
DATA_FAULTS = {  # for each fault of faulty_data.py, the cause that `common.diagnose` must name
    "swapped": "examples_swapped",
    "labels": "other_values",
    "no_mask": "array_of_ones",
    "reversed": "reversed",
    "shifted": "renumbered",
    "cut_at_the_start": "truncation_side",
    "padded_at_the_start": "padding_side",
    "lower_case": "renumbered",
    "order_of_classes": "renumbered",
    "zeros": "array_of_zeros",
}
CONFIG_FAULTS = {  # the value of each key on side B; the cause has the name of the key
    "train.seed": "1",
    "train.global_batch_size": "8",
    "optimizer.learning_rate": "0.02",
    "optimizer.weight_decay": "0",
    "optimizer.epsilon": "1e-7",
    "optimizer.beta2": "0.99",
    "optimizer.max_grad_norm": "null",
    "schedule.warmup_steps": "2",
    "task.label_smoothing": "0.1",
}
NOT_CLIPPED, CLIPPED = "optimizer.max_grad_norm=null", "optimizer.max_grad_norm=0.3"
# For each fault of faulty_strategy.py: further arguments of both runs, and the causes of which any is right
FAULTS_OF_BOTH_FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "averaged_twice": (NOT_CLIPPED, "averaged_twice"),
    "not_averaged": (NOT_CLIPPED, "not_averaged"),
    "missing": ("", "missing_gradient"),
    "mean_of_means": ("", "mean_of_means"),
    "bfloat16": ("", "reduced_in_bfloat16"),
    "clip_per_variable": (CLIPPED, "clipped_per_variable"),
    "stale": ("", "stale_gradient"),
    "schedule_late": ("schedule.warmup_steps=5", "schedule_late"),
    "set_epoch": ("steps=6", "epoch_not_reshuffled"),
    "mask_without_step": (DROPOUT, "same_masks_in_all_steps"),
    "mask_without_rank": (DROPOUT, "same_masks_on_all_ranks"),
}
FAULTS_OF_TORCH: dict[str, tuple[str, ...]] = {
    "clip_before": (CLIPPED, "clipped_before_reduction"),
    "epsilon": ("", "epsilon"),
    "no_decay": ("", "no_weight_decay"),
    "beta2": ("", "beta2"),
    "decay_coupled": ("", "weight_decay_coupled", "no_weight_decay"),
    "decay_on_matrices": ("", "weight_decay_on_biases"),
    "rate_scaled": ("", "learning_rate_scaled"),
    "state_lost": ("", "optimizer_state_lost"),
    "l2_twice": ("optimizer=adam optimizer.weight_decay=0.01", "l2_counted_twice"),
    "rate_inside": ("optimizer=sgd optimizer.momentum=0.9 optimizer.learning_rate=0.1", "rate_inside_velocity"),
}
KERAS_ADAMW_CAUSES = ("clipping_norm", "epsilon", "epsilon_place", "weight_decay", "repeated_indices")


def plant_data_faults() -> Iterator[Plant]:
    """Plant faults in B's training data."""
    for fault, cause in DATA_FAULTS.items():
        yield Plant(f"data: {fault}", f"{PAIR} {TEXT} b.data.train={{data}}/{fault}.npz", (cause,))
    yield Plant("data: scaled images", f"{PAIR} {IMAGES} b.data.train={{data}}/scaled.npz", ("scaled_inputs",))


def plant_config_faults() -> Iterator[Plant]:
    """Plant other values of config keys on side B."""
    for key, value in CONFIG_FAULTS.items():
        yield Plant(f"config: {key}", f"{PAIR} {TEXT} b.{key}={value}", (key,))


def plant_strategy_faults() -> Iterator[Plant]:
    """Plant faults in strategies and optimizers, some of which a framework has by itself."""
    for fault, (arguments, *causes) in {**FAULTS_OF_BOTH_FRAMEWORKS, **FAULTS_OF_TORCH}.items():
        for framework in ("torch", "tf") if fault in FAULTS_OF_BOTH_FRAMEWORKS else ("torch",):
            faulty = f"a=torch:single b={framework}:faulty b.strategy.fault={fault} {FAULTY_STRATEGY}"
            yield Plant(f"strategy: {fault} in {framework}", f"{faulty} {TEXT} {arguments}", tuple(causes))
    yield Plant("Keras's AdamW", f"{PAIR} {TEXT} optimizer.semantics=native", KERAS_ADAMW_CAUSES)
    hook = f"a=torch:ddp b=torch:ddp b.strategy.comm_hook=bf16 strategy.replicas=2 {TEXT}"
    yield Plant("ddp in bfloat16", hook, ("reduced_in_bfloat16",))
    for framework in ("torch", "tf"):
        workers = f"a=torch:single b={framework}:parameter_server b.strategy.replicas=2 {TEXT}"
        yield Plant(f"asynchronous updates in {framework}", workers, ("asynchronous",))
    masks = f"{PAIR} {TEXT} {DROPOUT} model.dropout_semantics=native"
    yield Plant("native dropout", masks, ("dropout_masks",))


def plant_precision_faults() -> Iterator[Plant]:
    """Plant faults that only low precision has, and some other faults in low precision."""
    for side, pair in SIDES.items():
        float32, argument = f"{pair} {TEXT} precision=float32", f"+model.arguments.{side}_fault"
        overflow = f"{float32} {argument}=mask_overflows"
        yield Plant(f"float32: mask_overflows in {side}", overflow, ("not_finite",))
        unit_norms = " ".join(f"+model.arguments.{name}_fault=unit_norm" for name in ("torch", "tf"))
        tiny = unit_norms.replace(f"{side}_fault=unit_norm", f"{side}_fault=unit_norm+tiny_epsilon")
        yield Plant(f"float32: tiny_epsilon in {side}", f"{float32} {tiny}", ("not_finite",))
        pooled = f"{float32} {argument}=pooled_in_bfloat16"
        yield Plant(f"float32: pooled_in_bfloat16 in {side}", pooled, ("lower_precision",))
        yield Plant(f"float32: gelu_tanh in {side}", f"{float32} {argument}=gelu_tanh", ("activation",))
    norm = f"a=torch:single b=torch:single {TEXT} precision=bfloat16 +b.model.arguments.torch_fault=norm_in_bfloat16"
    yield Plant("bfloat16: norm_in_bfloat16 in torch", norm, ("lower_precision",))
    momentum = f"{PAIR} {IMAGES} precision=float32 +model.arguments.tf_fault=bn_momentum"
    yield Plant("float32: bn_momentum in tf", momentum, ("moving_statistics",))
    for fault in ("mean_of_means", "epsilon"):
        faulty = f"a=torch:single b=torch:faulty b.strategy.fault={fault} {FAULTY_STRATEGY} {TEXT} precision=float32"
        yield Plant(f"float32: {fault} of a strategy in torch", faulty, (fault,))
