"""`train.compile`: torch.compile compiles the layers that a model repeats, once for all of them and for all shapes."""

import time
from functools import cache
from typing import Any

from torch.nn import Module, ModuleList

_seconds: list[float] = []  # of each compilation in this process


def compile_model(model: Module) -> None:
    """Have the layers that a model repeats compiled when they are first called, or else the whole model.

    They share their code, so that one is compiled for all. DDP gets the gradients of each when its backward pass ends,
    and reduces them during the next; from a whole model in one graph it would get all of them at the end.
    """
    _record_compilations()
    repeated = [layer for each in model.modules() if isinstance(each, ModuleList) for layer in each]
    for layer in repeated or [model]:
        layer.compile(dynamic=True)


@cache
def _record_compilations() -> None:
    from torch._dynamo.callback import on_compile_end, on_compile_start  # alone: it takes seconds to import

    started: list[float] = []
    on_compile_start(lambda args: started.append(time.perf_counter()))
    on_compile_end(lambda args: _seconds.append(time.perf_counter() - started.pop()))


def report_compilations() -> dict[str, Any]:
    """What summary.json says of them: how many graphs the chief has compiled, for training and for evaluation."""
    return {"compilations": len(_seconds), "compile_seconds": round(sum(_seconds), 1)}
