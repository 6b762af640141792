"""Compilation with torch.compile (`train.compile`): one graph for all repeated layers and for all shapes."""

import time
from functools import cache

from torch.nn import Module, ModuleList

_compile_seconds: list[float] = []  # duration of each compilation in this process


def compile_model(model: Module) -> None:
    """Make a model compile its repeated layers at their first call. A model without such layers is compiled as a whole.

    Repeated layers share their code, so one compilation serves all of them. DDP receives the gradients of a layer when
    the backward pass of the layer ends, and reduces them during the backward pass of the next layer. If the whole model
    were one graph, DDP would receive all gradients at the end.
    """
    _record_compilations()
    repeated_layers = [layer for module in model.modules() if isinstance(module, ModuleList) for layer in module]
    for layer in repeated_layers or [model]:
        layer.compile(dynamic=True)


@cache
def _record_compilations() -> None:
    from torch._dynamo.callback import on_compile_end, on_compile_start  # slow to import

    started: list[float] = []
    on_compile_start(lambda args: started.append(time.perf_counter()))
    on_compile_end(lambda args: _compile_seconds.append(time.perf_counter() - started.pop()))


def report_compilations() -> dict[str, int | float]:
    """Return the number of graphs that this process has compiled, and the seconds it took, for summary.json."""
    return {"compilations": len(_compile_seconds), "compile_seconds": round(sum(_compile_seconds), 1)}
