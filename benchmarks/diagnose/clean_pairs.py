"""Pairs of training runs without a planted cause, which the diagnosis must find equal."""

from benchmarks.diagnose.plant import DROPOUT, IMAGES, SEQUENCES, TEXT, Plant

PAIRS = (
    ("torch:single", "torch:ddp"),
    ("torch:single", "torch:dp"),
    ("torch:single", "torch:allreduce"),
    ("torch:single", "tf:single"),
    ("tf:single", "tf:mirrored"),
    ("tf:single", "tf:multiworker"),
    ("torch:ddp", "tf:mirrored"),
    ("tf:mirrored", "torch:ddp"),
)
SYNCHRONIZED_IMAGES = f"{IMAGES} model.sync_batch_norm=true"
BERT = "model=bert_tiny model.dropout=0.1"
MODELS = {
    "images with synchronized BatchNorm": SYNCHRONIZED_IMAGES,
    "convnet": "model=convnet data=digits",
    "bert_tiny with dropout": BERT,
    "LSTM with a tied output": SEQUENCES,
    "bert_tiny with dropout, padded": f"{BERT} train.padding=global",
    "text by SGD": f"{TEXT} optimizer=sgd",
    "text by Adam with an L2 penalty": f"{TEXT} optimizer=adam optimizer.weight_decay=0.01",
}
LOW_PRECISION = (  # A, B, the number of replicas, a name for the table, and further arguments
    ("torch:single", "tf:single", 1, "text in float32", f"{TEXT} precision=float32"),
    ("torch:single", "torch:ddp", 3, "text in float32", f"{TEXT} precision=float32"),
    ("tf:single", "tf:mirrored", 2, "text by SGD in float32", f"{TEXT} optimizer=sgd precision=float32"),
    ("torch:ddp", "tf:mirrored", 2, "images in float32", f"{SYNCHRONIZED_IMAGES} precision=float32"),
    ("torch:single", "tf:mirrored", 2, "bert_tiny in float32", f"{BERT} precision=float32"),
    ("torch:single", "torch:ddp", 2, "text in bfloat16", f"{TEXT} precision=bfloat16"),
    ("tf:single", "tf:mirrored", 2, "text in bfloat16", f"{TEXT} precision=bfloat16"),
)


def list_clean_pairs() -> list[Plant]:
    """Return every synchronous strategy against another, on several models, and in low precision."""
    strategies = [
        _pair(a, b, replicas, name, arguments)
        for a, b in PAIRS
        for replicas in (2, 3)
        for name, arguments in (("text", TEXT), ("text with dropout", f"{TEXT} {DROPOUT}"))
        if replicas == 2 or not (a.endswith("single") and b.endswith("single"))
    ]
    models = [
        _pair("torch:single", b, 2, name, arguments)
        for b in ("torch:ddp", "tf:mirrored")
        for name, arguments in MODELS.items()
    ]
    return [*strategies, *models, *(_pair(*pair) for pair in LOW_PRECISION)]


def _pair(a: str, b: str, replicas: int, name: str, arguments: str) -> Plant:
    """Return a pair of runs, which are FRAMEWORK:STRATEGY; `single` always has one replica."""
    counts = [
        f"{side}.strategy.replicas={replicas}"
        for side, strategy in (("a", a), ("b", b))
        if not strategy.endswith("single")
    ]
    return Plant(f"a={a} b={b} x{replicas}, {name}", " ".join((f"a={a} b={b}", arguments, *counts)), ())
