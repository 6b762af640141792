"""Causes that are planted in models.

A diagnosis compares two training runs, A and B; B is the faulty one. The tables below have, for each fault of a model,
the cause that `common.diagnose` must name.
"""

from collections.abc import Iterator

from benchmarks.diagnose.plant import FAULTY_BERT, IMAGES, SEQUENCES, TEXT, Plant

SIDES = {"tf": "a=torch:single b=tf:single", "torch": "a=tf:single b=torch:single"}  # arguments by the faulty framework
TEXT_FAULTS = {
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
}
IMAGE_FAULTS = {
    "bn_epsilon": "epsilon",
    "bn_momentum": "moving_statistics",
    "leaky": "activation",
    "max_pool": "pooling",
    "scaled": "scale",
    "bfloat16 convolution": "computed_in_bfloat16",
}
BERT_FAULTS = {
    "gelu_tanh": "activation",
    "epsilon": "epsilon",
    "scale": "attention_scale",
    "query_key": "attention_order",
    "mask_ignored": "attention_mask",
}


def plant_model_faults() -> Iterator[Plant]:
    """Plant faults in small models, on either side if both frameworks can have them."""
    for model, faults in ((TEXT, TEXT_FAULTS), (IMAGES, IMAGE_FAULTS), (SEQUENCES, {"gates": "gate_order"})):
        for fault, cause in faults.items():
            for side, pair in SIDES.items():
                if (fault, side) != ("detached", "tf"):  # TensorFlow refuses to train without a gradient
                    faulty = f"+model.arguments.{side}_fault={fault.split()[0]}"
                    yield Plant(f"{fault} in {side}", f"{pair} {model} {faulty}", (cause,))
    variance = f"{SIDES['torch']} {IMAGES} +model.arguments.torch_fault=biased_variance"
    yield Plant("biased_variance in torch", variance, ("biased_variance",))
    for cell in ("LSTM", "GRU"):
        for fault in ("gates", "copied_gates"):
            name = f"{fault} of {cell} in torch"
            yield _plant_in_torch(name, fault, "gate_order", f"+model.arguments.cell={cell}")
    yield _plant_in_torch("untied in torch", "untied", "tied_on_one_side")
    tied = f"a=torch:single b=torch:single {SEQUENCES} model.tf=null +a.model.arguments.torch_fault=untied"
    yield Plant("tied in torch", tied, ("tied_on_one_side",))
    row = "+model.arguments.torch_fault=mean_of_padding+padding_row +model.arguments.tf_fault=mean_of_padding"
    yield Plant("padding_row in torch", f"{SIDES['torch']} {TEXT} {row}", ("padding_row",))
    padding = f"{SIDES['tf']} {IMAGES} +model.arguments.tf_fault=same_padding"
    yield Plant("same_padding in tf", padding, ("same_padding_at_strides", "padding"))


def _plant_in_torch(name: str, fault: str, cause: str, arguments: str = "") -> Plant:
    """Plant a fault in a PyTorch model without a Keras counterpart, so that its initial weights may differ too."""
    faulty = f"+b.model.arguments.torch_fault={fault}"
    return Plant(name, f"a=torch:single b=torch:single {SEQUENCES} model.tf=null {faulty} {arguments}", (cause,))


def plant_bert_faults() -> Iterator[Plant]:
    """Plant faults in BERT: on either side; for TensorFlow also against TensorFlow, and on padded batches."""
    pairs = {
        **SIDES,
        "tf, against tf": "a=tf:single b=tf:single",
        "tf, on padded batches": f"{SIDES['tf']} train.padding=global",
    }
    for fault, cause in BERT_FAULTS.items():
        for title, pair in pairs.items():
            yield Plant(f"bert: {fault} in {title}", f"{pair} {FAULTY_BERT} b.model.fault={fault}", (cause,))
