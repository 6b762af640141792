"""Causes that are planted: the arguments of common.diagnose, and what it must name."""

from collections.abc import Iterator
from dataclasses import dataclass

TEXT = (
    "model=custom model.torch=benchmarks.diagnose.models_torch:text model.tf=benchmarks.diagnose.models_keras:text "
    "data=arrays data.train={data}/text.npz data.validation={data}/text.npz train.global_batch_size=7 train.steps=20 "
    "optimizer.learning_rate=0.01"
)
IMAGES = TEXT.replace(":text", ":images").replace("text.npz", "images.npz") + " data.channels=[images]"
SEQUENCES = TEXT.replace(":text", ":sequences")
FAULTY = "extensions=[benchmarks.diagnose.strategies] hydra.searchpath=[pkg://benchmarks.diagnose.conf]"
BERT = f"{FAULTY} model=faulty_bert data.train_examples=60 data.validation_examples=12".replace(".strategies", ".bert")

DROPOUT = "+model.arguments.dropout=0.1"


@dataclass(frozen=True)
class Plant:
    """causes: any of these is right, as the first that is named; none where nothing is planted.

    others: the same for what is planted beside it, which has to be named too.
    """

    name: str
    arguments: str
    causes: tuple[str, ...]
    others: tuple[str, ...] = ()


def model_faults() -> Iterator[Plant]:
    """On either side."""
    faults = {
        "text": {
            "gelu_tanh": "activation",
            "relu": "activation",
            "epsilon": "epsilon",
            "scale": "attention_scale",
            "mask_ignored": "attention_mask",
            "mask_inverted": "attention_mask",
            "causal": "attention_mask",
            "query_key": "attention_order",
            "first_token": "pooling",
            "mean_of_padding": "pooling",
            "double_softmax": "activation",
            "frozen": "not_trained",
            "detached": "no_gradient",
            **{name: f"computed_in_{name}" for name in ("tf32", "bfloat16", "float16", "float32")},
        },
        "images": {
            "bn_epsilon": "epsilon",
            "bn_momentum": "moving_statistics",
            "leaky": "activation",
            "max_pool": "pooling",
            "scaled": "scale",
            "bfloat16 convolution": "computed_in_bfloat16",
        },
        "sequences": {"gates": "gate_order"},
    }
    for model, found in faults.items():
        for fault, cause in found.items():
            for side, pair in (("tf", "a=torch:single b=tf:single"), ("torch", "a=tf:single b=torch:single")):
                base = {"text": TEXT, "images": IMAGES, "sequences": SEQUENCES}[model]
                if (fault, side) == ("detached", "tf"):
                    continue  # TensorFlow refuses to train
                faulty = f"+model.arguments.{side}_fault={fault.split()[0]}"
                yield Plant(f"{fault} in {side}", f"{pair} {base} {faulty}", (cause,))
    yield Plant(
        "biased_variance in torch",
        f"a=tf:single b=torch:single {IMAGES} +model.arguments.torch_fault=biased_variance",
        ("biased_variance",),
    )
    for cell in ("LSTM", "GRU"):
        for fault in ("gates", "copied_gates"):
            yield _of_torch(f"{fault} of {cell} in torch", fault, "gate_order", f"+model.arguments.cell={cell}")
    yield _of_torch("untied in torch", "untied", "tied_on_one_side")
    tied = f"{SEQUENCES} model.tf=null +a.model.arguments.torch_fault=untied"
    yield Plant("tied in torch", f"a=torch:single b=torch:single {tied}", ("tied_on_one_side",))
    row = "torch_fault=mean_of_padding+padding_row +model.arguments.tf_fault=mean_of_padding"
    yield Plant("padding_row in torch", f"a=tf:single b=torch:single {TEXT} +model.arguments.{row}", ("padding_row",))
    yield Plant(
        "same_padding in tf",
        f"a=torch:single b=tf:single {IMAGES} +model.arguments.tf_fault=same_padding",
        ("same_padding_at_strides", "padding"),
    )


def _of_torch(name: str, fault: str, cause: str, more: str = "") -> Plant:
    """Of models that no Keras model is paired with, so that their initial weights may differ too."""
    faulty = f"+b.model.arguments.torch_fault={fault}"
    return Plant(name, f"a=torch:single b=torch:single {SEQUENCES} model.tf=null {faulty} {more}", (cause,))


def bert_faults() -> Iterator[Plant]:
    """On either side, against the other framework; in TensorFlow also within it, and on padded batches."""
    faults = {
        "gelu_tanh": "activation",
        "epsilon": "epsilon",
        "scale": "attention_scale",
        "query_key": "attention_order",
        "mask_ignored": "attention_mask",
    }
    pairs = {
        "tf": "a=torch:single b=tf:single",
        "torch": "a=tf:single b=torch:single",
        "tf, against tf": "a=tf:single b=tf:single",
        "tf, on padded batches": "a=torch:single b=tf:single train.padding=global",
    }
    for fault, cause in faults.items():
        for side, pair in pairs.items():
            yield Plant(f"bert: {fault} in {side}", f"{pair} {BERT} b.model.fault={fault}", (cause,))


def data_faults() -> Iterator[Plant]:
    causes = {
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
    for fault, cause in causes.items():
        arguments = f"a=torch:single b=tf:single {TEXT} b.data.train={{data}}/{fault}.npz"
        yield Plant(f"data: {fault}", arguments, (cause,))
    scaled = f"a=torch:single b=tf:single {IMAGES} b.data.train={{data}}/scaled.npz"
    yield Plant("data: scaled images", scaled, ("scaled_inputs",))


def config_faults() -> Iterator[Plant]:
    keys = {
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
    for key, value in keys.items():
        yield Plant(f"config: {key}", f"a=torch:single b=tf:single {TEXT} b.{key}={value}", (key,))


def strategy_faults() -> Iterator[Plant]:
    clipped = "optimizer.max_grad_norm=0.3"
    both = {
        "averaged_twice": ("optimizer.max_grad_norm=null", "averaged_twice"),
        "not_averaged": ("optimizer.max_grad_norm=null", "not_averaged"),
        "missing": ("", "missing_gradient"),
        "mean_of_means": ("", "mean_of_means"),
        "bfloat16": ("", "reduced_in_bfloat16"),
        "clip_per_variable": (clipped, "clipped_per_variable"),
        "stale": ("", "stale_gradient"),
        "schedule_late": ("schedule.warmup_steps=5", "schedule_late"),
        "set_epoch": ("steps=6", "epoch_not_reshuffled"),
        "mask_without_step": (DROPOUT, "same_masks_in_all_steps"),
        "mask_without_rank": (DROPOUT, "same_masks_on_all_ranks"),
    }
    torch_only = {
        "clip_before": (clipped, "clipped_before_reduction"),
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
    for fault, (extra, *causes) in {**both, **torch_only}.items():
        for framework in ("torch", "tf") if fault in both else ("torch",):
            yield Plant(
                f"strategy: {fault} in {framework}",
                f"a=torch:single b={framework}:faulty b.strategy.fault={fault} {FAULTY} {TEXT} {extra}",
                tuple(causes),
            )
    native = f"a=torch:single b=tf:single {TEXT} optimizer.semantics=native"
    yield Plant(
        "Keras's AdamW", native, ("clipping_norm", "epsilon", "epsilon_place", "weight_decay", "repeated_indices")
    )
    hook = f"a=torch:ddp b=torch:ddp b.strategy.comm_hook=bf16 strategy.replicas=2 {TEXT}"
    yield Plant("ddp in bfloat16", hook, ("reduced_in_bfloat16",))
    for framework in ("torch", "tf"):
        workers = f"a=torch:single b={framework}:parameter_server b.strategy.replicas=2 {TEXT}"
        yield Plant(f"asynchronous updates in {framework}", workers, ("asynchronous",))
    masks = f"a=torch:single b=tf:single {TEXT} model.arguments.dropout=0.1 model.dropout_semantics=native"
    yield Plant("native dropout", masks.replace("model.arguments", "+model.arguments"), ("dropout_masks",))


def precision_faults() -> Iterator[Plant]:
    """Some that only low precision has, and some others in low precision."""
    for side, pair in (("tf", "a=torch:single b=tf:single"), ("torch", "a=tf:single b=torch:single")):
        arguments = f"{pair} {TEXT} precision=float32 +model.arguments"
        yield Plant(f"float32: mask_overflows in {side}", f"{arguments}.{side}_fault=mask_overflows", ("not_finite",))
        both = "torch_fault=unit_norm +model.arguments.tf_fault=unit_norm"
        tiny = both.replace(f"{side}_fault=unit_norm", f"{side}_fault=unit_norm+tiny_epsilon")
        yield Plant(f"float32: tiny_epsilon in {side}", f"{arguments}.{tiny}", ("not_finite",))
        pooled = f"{arguments}.{side}_fault=pooled_in_bfloat16"
        yield Plant(f"float32: pooled_in_bfloat16 in {side}", pooled, ("lower_precision",))
        yield Plant(f"float32: gelu_tanh in {side}", f"{arguments}.{side}_fault=gelu_tanh", ("activation",))
    norm = f"a=torch:single b=torch:single {TEXT} precision=bfloat16 +b.model.arguments.torch_fault=norm_in_bfloat16"
    yield Plant("bfloat16: norm_in_bfloat16 in torch", norm, ("lower_precision",))
    momentum = f"a=torch:single b=tf:single {IMAGES} precision=float32 +model.arguments.tf_fault=bn_momentum"
    yield Plant("float32: bn_momentum in tf", momentum, ("moving_statistics",))
    for fault, cause in (("mean_of_means", "mean_of_means"), ("epsilon", "epsilon")):
        faulty = f"a=torch:single b=torch:faulty b.strategy.fault={fault} {FAULTY} {TEXT} precision=float32"
        yield Plant(f"float32: {fault} of a strategy in torch", faulty, (cause,))


def plants() -> list[Plant]:
    of_strategies = [*config_faults(), *strategy_faults(), *precision_faults()]
    return [*model_faults(), *bert_faults(), *data_faults(), *of_strategies]


TOGETHER = (
    ("gelu_tanh in tf", "epsilon in tf"),
    ("mask_ignored in torch", "gelu_tanh in torch"),
    ("query_key in tf", "first_token in tf"),
    ("scale in torch", "epsilon in torch"),
    ("relu in tf", "mask_inverted in tf"),
    ("causal in torch", "double_softmax in torch"),
    ("bn_epsilon in tf", "leaky in tf"),
    ("max_pool in torch", "scaled in torch"),
    ("bn_momentum in tf", "max_pool in tf"),
    ("gelu_tanh in tf", "data: labels"),
    ("relu in torch", "data: reversed"),
    ("bn_epsilon in torch", "data: scaled images"),
    ("gelu_tanh in tf", "config: optimizer.epsilon"),
    ("epsilon in torch", "config: optimizer.weight_decay"),
    ("mask_ignored in tf", "config: task.label_smoothing"),
    ("data: labels", "config: optimizer.beta2"),
    ("gelu_tanh in torch", "strategy: averaged_twice in torch"),
    ("epsilon in tf", "strategy: missing in tf"),
    ("scale in torch", "strategy: mean_of_means in torch"),
    ("first_token in tf", "strategy: bfloat16 in tf"),
    ("relu in torch", "strategy: no_decay in torch"),
    ("mask_ignored in tf", "strategy: schedule_late in tf"),
    ("strategy: rate_scaled in torch", "config: task.label_smoothing"),
    ("strategy: missing in torch", "config: optimizer.beta2"),
)


def two_at_once() -> list[Plant]:
    """Two of the plants in one pair of trainings."""
    found = {each.name: each for each in plants()}
    return [_together(found[first], found[second]) for first, second in TOGETHER]


def _together(first: Plant, second: Plant) -> Plant:
    """Side a is that of the first plant, side b that of the second where it is faulty; the faults of a model add up."""
    arguments = dict(each.split("=", 1) for each in first.arguments.split())
    for key, value in (each.split("=", 1) for each in second.arguments.split()):
        if key.startswith("+model.arguments.") and key in arguments:
            arguments[key] += f"+{value}"
        elif key not in ("a", "b") or (key == "b" and value.endswith("faulty")):
            arguments[key] = value
    joined = " ".join(f"{key}={value}" for key, value in arguments.items())
    return Plant(f"two: {first.name}, {second.name}", joined, first.causes, second.causes)


def clean() -> list[Plant]:
    """Pairs that are equal: every synchronous strategy against single, both frameworks."""
    pairs = (
        ("torch:single", "torch:ddp"),
        ("torch:single", "torch:dp"),
        ("torch:single", "torch:allreduce"),
        ("torch:single", "tf:single"),
        ("tf:single", "tf:mirrored"),
        ("tf:single", "tf:multiworker"),
        ("torch:ddp", "tf:mirrored"),
        ("tf:mirrored", "torch:ddp"),
    )
    found = [
        _clean(a, b, replicas, name, arguments)
        for a, b in pairs
        for replicas in (2, 3)
        for name, arguments in (("text", TEXT), ("text with dropout", f"{TEXT} {DROPOUT}"))
        if replicas == 2 or not (a.endswith("single") and b.endswith("single"))
    ]
    others = {
        "images with synchronized BatchNorm": f"{IMAGES} model.sync_batch_norm=true",
        "convnet": "model=convnet data=digits",
        "bert_tiny with dropout": "model=bert_tiny model.dropout=0.1",
        "LSTM with a tied output": SEQUENCES,
        "bert_tiny with dropout, padded": "model=bert_tiny model.dropout=0.1 train.padding=global",
        "text by SGD": f"{TEXT} optimizer=sgd",
        "text by Adam with an L2 penalty": f"{TEXT} optimizer=adam optimizer.weight_decay=0.01",
    }
    images, bert = others["images with synchronized BatchNorm"], others["bert_tiny with dropout"]
    low = (
        ("torch:single", "tf:single", 1, "text in float32", f"{TEXT} precision=float32"),
        ("torch:single", "torch:ddp", 3, "text in float32", f"{TEXT} precision=float32"),
        ("tf:single", "tf:mirrored", 2, "text by SGD in float32", f"{TEXT} optimizer=sgd precision=float32"),
        ("torch:ddp", "tf:mirrored", 2, "images in float32", f"{images} precision=float32"),
        ("torch:single", "tf:mirrored", 2, "bert_tiny in float32", f"{bert} precision=float32"),
        ("torch:single", "torch:ddp", 2, "text in bfloat16", f"{TEXT} precision=bfloat16"),
        ("tf:single", "tf:mirrored", 2, "text in bfloat16", f"{TEXT} precision=bfloat16"),
    )
    return [
        *found,
        *(
            _clean("torch:single", b, 2, name, arguments)
            for b in ("torch:ddp", "tf:mirrored")
            for name, arguments in others.items()
        ),
        *(_clean(*each) for each in low),
    ]


def _clean(a: str, b: str, count: int, name: str, arguments: str) -> Plant:
    replicas = [
        f"{side}.strategy.replicas={count}" for side, each in (("a", a), ("b", b)) if not each.endswith("single")
    ]
    return Plant(f"a={a} b={b} x{count}, {name}", " ".join((f"a={a} b={b}", arguments, *replicas)), ())
