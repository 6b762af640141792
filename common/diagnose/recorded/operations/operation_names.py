"""Names of operations in one spelling for both frameworks."""

import re
from collections.abc import Mapping

from common.recording.operation_format import Operation

LOSS = "loss"  # stands for the number of the loss in place of the name of a tensor
VERSION = re.compile(r"v\d+$")  # end of names such as "AddV2"
POOLINGS = (("max", "max"), ("avg", "average"))  # in PyTorch and in Keras
PRODUCTS = (
    *("matmul", "batchmatmul", "bmm", "mm", "einsum", "linear", "dense", "einsumdense", "biasadd", "addmm"),
    *("dot", "baddbmm"),
)
CROSS_ENTROPY = "crossentropy"  # of logits, in one spelling
# Names of operations that have several, without underscores and in lower case
SPELLINGS = {
    name: names[0]
    for names in (
        PRODUCTS,
        ("add", "iadd", "radd", "addn"),
        ("sub", "isub", "rsub", "subtract"),
        ("mul", "imul", "rmul", "multiply"),
        ("div", "truediv", "realdiv", "rtruediv", "itruediv", "divnonan", "divide"),
        ("neg", "negative"),
        ("pow", "rpow"),
        ("cat", "concat", "concatenate"),
        ("stack", "pack"),
        ("max", "amax"),
        ("equal", "eq"),
        ("notequal", "ne"),
        ("greater", "gt"),
        ("greaterequal", "ge"),
        ("less", "lt"),
        ("lessequal", "le"),
        ("min", "amin"),
        ("maximum", "minimum", "clampmin", "clamp", "clip", "clipbyvalue", "relu"),
        ("where", "select", "maskedfill"),
        *((f"{name}pool{rank}d", f"{keras}pooling{rank}d") for name, keras in POOLINGS for rank in (1, 2, 3)),
        ("binarycrossentropywithlogits", "sigmoidcrossentropywithlogits"),
        (CROSS_ENTROPY, "crossentropyloss", "sparsesoftmaxcrossentropywithlogits", "softmaxcrossentropywithlogits"),
        ("logsoftmax", "logsumexp"),  # torch.distributions subtracts the result of logsumexp
        ("indexadd", "scatteradd", "unsortedsegmentsum", "segmentsum", "tensorscatteradd"),
        ("gather", "takealongdim", "getitem", "stridedslice", "indexselect", "resourcegather", "embedding"),
    )
    for name in names
}

# Operations that put the numbers of tensors into another shape or another order, in one spelling
LAYOUTS = (
    *("reshape", "view", "flatten", "unflatten", "permute", "transpose", "swapaxes", "movedim", "moveaxis", "t"),
    *("stack", "cat", "unbind", "unstack"),
)
# Names of operations whose result has the numbers of their first tensor
KEEPING = {
    "asstrided", "cast", "clone", "contiguous", "data", "detach", "double", "expanddims", "flatten", "float", "int",
    "long", "permute", "reshape", "squeeze", "stopgradient", "t", "to", "transpose", "type", "unsqueeze", "view",
}  # fmt: skip
# These put the numbers of one tensor into another order, too
ORDERING = (
    *(*LAYOUTS, "gather", "roll", "flip", "reverse"),
    *("depthtospace", "spacetodepth", "pixelshuffle", "pixelunshuffle"),
)
# Operations that choose elements, or whose results do
CHOOSING = {"where", "equal", "notequal", "greater", "greaterequal", "less", "lessequal"}
INDEXED = ("gather", "indexadd")  # operations that select or add numbers at indices, in one spelling
COLLECTING = ("add", "cat", "stack")  # operations of many tensors, in any grouping
# Functions of one tensor, in one spelling. Their other names return other numbers.
ACTIVATIONS = {
    *("maximum", "sigmoid", "hardsigmoid", "tanh", "hardtanh", "gelu", "silu", "hardswish", "mish", "softplus"),
    *("elu", "selu", "celu", "leakyrelu", "relu6", "softsign", "logsigmoid"),
}
FUNCTIONS = ACTIVATIONS | {
    *("softmax", "logsoftmax", "sparsemax", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "square", "abs"),
    *("sin", "cos", "erf", "reciprocal"),
}
# Losses that compute probabilities from logits themselves, in one spelling
LOGIT_LOSSES = {
    CROSS_ENTROPY,
    *("binarycrossentropywithlogits", "bcewithlogitsloss", "logsoftmax"),
}
PACK, UNPACK = "packpaddedsequence", "padpackedsequence"
RECURRENT_LAYERS = ("lstm", "gru", "rnn", "simplernn", "bidirectional")
NLL_LOSS = "nllloss"  # receives logarithms of probabilities
PROBABILITIES = ("softmax", "sigmoid", "logsoftmax")  # functions of logits that such losses must not receive
ELEMENTWISE = ("add", "sub", "mul", "div", "maximum")  # operations of two tensors, in one spelling

# Arguments of PyTorch's losses that change nothing. TensorFlow's losses have no such arguments
DEFAULTS: Mapping[str, object] = {
    **dict.fromkeys(("weight", "size_average", "reduce", "pos_weight")),
    **{"ignore_index": -100, "label_smoothing": 0.0, "reduction": "none"},
}


def is_selection(operation: Operation) -> bool:
    """Check whether an operation returns the elements at a recorded index, in whatever way it is written."""
    return isinstance(operation["arguments"].get("index"), str) and operation["name"] != "setitem"


def normalize_name(operation: Operation) -> str:
    """Return the name of an operation without the differences of spelling between and within the frameworks."""
    name = operation["name"]
    if name == "Activation":  # a layer of Keras that computes the function that its argument names
        name = str(operation["arguments"].get("activation", name))
    if is_selection(operation):  # a mask selects what the other script may choose by "where"
        return SPELLINGS["where" if "bool[" in str(operation["arguments"]["index"]) else "getitem"]
    name = simplify_name(name)
    return SPELLINGS.get(name, name)


def simplify_name(name: str) -> str:
    """Return the name of an operation in lower case, without underscores and version."""
    return VERSION.sub("", name.replace("_", "").lower())


def list_values(operation: Operation) -> dict[str, object]:
    """Return the arguments of an operation without an index, which has several notations, and without defaults."""
    return {
        name: value
        for name, value in operation["arguments"].items()
        if not (name == "index" and isinstance(value, str)) and (name not in DEFAULTS or value != DEFAULTS[name])
    }
