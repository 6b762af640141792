"""The table of a benchmark: the same cells on the terminal, on the page and in the document."""

from typing import Any

from rich.console import Console
from rich.table import Table

from common.compare.formats import memory, number

COLUMNS = ["contestant", "replicas", "precision", "examples/s", "tokens/s", "ratio", "quartiles", "scaling"]
COLUMNS += ["utilisation", "peak memory", "start-up"]
PLAIN_WIDTH = 160  # of output that is not a terminal


def cells(contestant: dict[str, Any]) -> list[str]:
    """One row under COLUMNS, of an entry of bench.json's `contestants`."""
    ratio, scaling, used = (contestant[key] or {} for key in ("ratio", "scaling_efficiency", "utilisation"))
    return [
        contestant["name"],
        str(contestant["replicas"]),
        contestant["precision"],
        number(contestant["examples_per_second"], ",.1f"),
        number(contestant["tokens_per_second"], ",.0f"),
        number(ratio["median"], ".2f"),
        f"{ratio['lower']:.2f} to {ratio['upper']:.2f}",
        number(scaling.get("median"), ".2f"),
        number(used.get("median"), ".0%"),
        memory([contestant["peak_memory_bytes"]]),
        f"{contestant['start_up_seconds']:.1f} s",
    ]


def sentences(result: dict[str, Any]) -> list[str]:
    """What the table is of, from the content of bench.json."""
    settings, hardware = result["settings"], result["hardware"]
    gpus = f", {hardware['gpus']} GPUs" if hardware["gpus"] else ""
    found = [
        f"{result['date'][:10]}; {hardware['processor']}, {hardware['cores']} cores{gpus}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ".",
        f"Config: {' '.join(result['overrides']) or 'the defaults'}. {settings['rounds']} rounds of "
        f"{settings['block_seconds']:g} s for each contestant in turn. Rates are medians over the rounds; a ratio is "
        f"to {settings['reference']} in the same round, with its median and quartiles.",
    ]
    rates = [
        f"{precision} {rate['median'] / 1e9:,.0f} GFLOP/s"
        for precision, rate in result["matrix_flops_per_second"].items()
    ]
    if rates:
        found.append(
            f"Utilisation: useful operations (real tokens only) over the rate of matrix products in the same round "
            f"({', '.join(rates)})."
        )
    if any(contestant["scaling_efficiency"] for contestant in result["contestants"]):
        per_gpu = " and over the number of GPUs" if hardware["gpus"] else ", which has all cores too"
        found.append(f"Scaling: speed over that of one replica{per_gpu}.")
    return found


def print_result(result: dict[str, Any]) -> None:
    """Print the table with its sentences."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
    table = Table(title=result["title"], title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if index else "left", header_style="dim", overflow="fold")
    for contestant in result["contestants"]:
        table.add_row(*cells(contestant))
    console.print(table)
    for sentence in sentences(result):
        console.print(sentence)
