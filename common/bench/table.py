"""The tables of a benchmark: the same cells on the terminal, on the page and in the document."""

from typing import Any

from rich.console import Console
from rich.table import Table

from common.profile.trace import PHASES
from common.report.formats import TableSection, format_memory, format_number

COLUMNS = ["contestant", "replicas", "precision", "examples/s", "tokens/s", "ratio", "quartiles", "scaling"]
COLUMNS += ["utilisation", "peak memory", "start-up"]
PLAIN_WIDTH = 160  # of output that is not a terminal


def cells(contestant: dict[str, Any]) -> list[str]:
    """One row under COLUMNS, of an entry of bench.json's `contestants`."""
    ratio, scaling, used = (contestant[key] or {} for key in ("ratio", "scaling_efficiency", "utilisation"))
    precision, products = contestant["precision"], contestant["matmul_precision"]
    return [
        contestant["name"],
        str(contestant["replicas"]),
        precision if products == precision else f"{precision}, products {products}",
        format_number(contestant["examples_per_second"], ",.1f"),
        format_number(contestant["tokens_per_second"], ",.0f"),
        format_number(ratio["median"], ".2f"),
        f"{ratio['lower']:.2f} to {ratio['upper']:.2f}",
        format_number(scaling.get("median"), ".2f"),
        format_number(used.get("median"), ".0%"),
        format_memory([contestant["peak_memory_bytes"]]),
        f"{contestant['start_up_seconds']:.1f} s",
    ]


def sections(result: dict[str, Any]) -> list[TableSection]:
    """The tables of a benchmark. result: the content of bench.json."""
    rows = [cells(contestant) for contestant in result["contestants"]]
    found = [TableSection(result["title"], COLUMNS, rows, ("contestant",), _sentences(result))]
    if any(contestant["time_split"] for contestant in result["contestants"]):
        found.append(_of_time(result["contestants"]))
    if result["prediction"] is not None:
        found += _of_prediction(result["prediction"])
    return found


def _of_time(contestants: list[dict[str, Any]]) -> TableSection:
    """Where the time of a step goes, of the contestants that have been profiled."""
    rows = [
        [each["name"], *(f"{each['time_split'][phase]:.0%}" for phase in PHASES)]
        for each in contestants
        if each["time_split"]
    ]
    about = (
        "Shares of five steps of the first rank, profiled before the first round, when the others were stopped. A "
        "hidden reduction runs while the rank computes, and counts there too; an exposed one is waited for."
    )
    return TableSection("Time of a step", ["contestant", *PHASES], rows, ("contestant",), [about])


def _sentences(result: dict[str, Any]) -> list[str]:
    settings, hardware = result["settings"], result["hardware"]
    gpus = f", {hardware['gpus']} GPUs" if hardware["gpus"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    found = [
        f"{result['date'][:10]}; {hardware['processor']}, {hardware['cores']} cores{gpus}; {versions}.",
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


def _of_prediction(prediction: dict[str, Any]) -> list[TableSection]:
    """How far it is from what was measured, and the prediction itself."""
    compute, link = prediction["compute"], prediction["link"]
    fit = (
        f"Fitted: a step of one replica on one core takes {compute['per_step'] * 1e3:.1f} ms and "
        f"{compute['per_example'] * 1e3:.2f} ms for each example; a message between two processes here takes "
        f"{link['alpha'] * 1e6:.0f} us, and its bytes are copied, sent and summed at {1e-9 / link['beta']:.2f} GB/s; "
        f"gradients of {prediction['gradient_bytes'] / 1e6:.1f} MB."
    )
    checks = [
        [
            each["name"],
            str(each["replicas"]),
            format_number(each["measured"], ",.1f"),
            format_number(each["predicted"], ",.1f"),
            format_number(each["ratio"]["median"], ".2f"),
            f"{each['ratio']['lower']:.2f} to {each['ratio']['upper']:.2f}",
        ]
        for each in prediction["checks"]
    ]
    columns = ["contestant", "replicas", "examples/s", "predicted", "measured / predicted", "quartiles"]
    paper = [
        [each["reduce"], f"{each['gbit_per_second']:g} Gbit/s", *(f"{speed:,.0f}" for speed in each["predicted"])]
        for each in prediction["examples_per_second"]
    ]
    about = (
        f"Examples per second by the number of replicas, each with one such core. A step of a replica has "
        f"{prediction['examples_per_replica']} examples. A message takes {prediction['latency'] * 1e6:g} us and the "
        "time for its bytes; nothing is hidden behind computing."
    )
    return [
        TableSection("Predicted here", columns, checks, ("contestant",), [fit]),
        TableSection(
            "Predicted for more", ["reduce", "link", *map(str, prediction["replicas"])], paper, ("reduce",), [about]
        ),
    ]


def print_result(result: dict[str, Any]) -> None:
    """Print the tables with their sentences."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
    for section in sections(result):
        table = Table(title=section.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for index, name in enumerate(section.columns):
            table.add_column(name, justify="right" if index else "left", header_style="dim", overflow="fold")
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
        for sentence in section.sentences:
            console.print(sentence)
        console.print()
