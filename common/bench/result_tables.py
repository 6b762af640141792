"""The tables of a benchmark. The terminal, the page and the document show the same cells."""

from rich.console import Console
from rich.table import Table

from common.bench.result import BenchResult, ContestantResult, Prediction
from common.profile.trace import PHASES
from common.report.formats import TableSection, format_bytes, format_memory, format_number

COLUMNS = ["contestant", "replicas", "precision", "examples/s", "tokens/s", "ratio", "quartiles", "scaling"]
COLUMNS += ["utilisation", "peak memory", "start-up"]
PLAIN_WIDTH = 160  # characters in a line if the output is not a terminal


def build_row(contestant: ContestantResult) -> list[str]:
    """Return the cells of a contestant, one for each of COLUMNS."""
    ratio, scaling, utilisation = contestant["ratio"], contestant["scaling_efficiency"], contestant["utilisation"]
    precision, matmul_precision = contestant["precision"], contestant["matmul_precision"]
    return [
        contestant["name"],
        str(contestant["replicas"]),
        precision if matmul_precision == precision else f"{precision}, products {matmul_precision}",
        format_number(contestant["examples_per_second"], ",.1f"),
        format_number(contestant["tokens_per_second"], ",.0f"),
        format_number(ratio["median"], ".2f"),
        f"{ratio['lower']:.2f} to {ratio['upper']:.2f}",
        format_number(scaling and scaling["median"], ".2f"),
        format_number(utilisation and utilisation["median"], ".0%"),
        format_memory([contestant["peak_memory_bytes"]]),
        f"{contestant['start_up_seconds']:.1f} s",
    ]


def build_sections(result: BenchResult) -> list[TableSection]:
    """Return the tables of a benchmark."""
    rows = [build_row(contestant) for contestant in result["contestants"]]
    sections = [TableSection(result["title"], COLUMNS, rows, ("contestant",), _describe_benchmark(result))]
    if any(contestant["time_split"] for contestant in result["contestants"]):
        sections.append(_build_time_section(result["contestants"]))
    if result["prediction"] is not None:
        sections += _build_prediction_sections(result["prediction"])
    return sections


def _build_time_section(contestants: list[ContestantResult]) -> TableSection:
    """Return the table of the share of each phase in a step, for the contestants that were profiled."""
    rows = [
        [contestant["name"], *(f"{split[phase]:.0%}" for phase in PHASES)]
        for contestant in contestants
        if (split := contestant["time_split"])
    ]
    note = (
        "The time of five steps of the first rank by phase. These steps are profiled before the first round, while the "
        "other contestants are suspended. A hidden reduction runs while the rank computes, so its time also counts as "
        "computation; the rank waits for an exposed reduction."
    )
    return TableSection("Time of a step", ["contestant", *PHASES], rows, ("contestant",), [note])


def _describe_benchmark(result: BenchResult) -> list[str]:
    """Return sentences on the machine, the versions, the config and the columns."""
    settings, hardware = result["settings"], result["hardware"]
    gpus = f", {hardware['gpus']} x {hardware['gpu']}" if hardware["gpus"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    sentences = [
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
        sentences.append(
            f"Utilisation: useful operations per second (without padding), divided by the measured speed of matrix "
            f"products in the same round ({', '.join(rates)})."
        )
    if any(contestant["scaling_efficiency"] for contestant in result["contestants"]):
        per_gpu = " and by the number of GPUs" if hardware["gpus"] else ", which already uses all cores"
        sentences.append(f"Scaling: speed divided by the speed of one replica{per_gpu}.")
    return sentences


def _build_prediction_sections(prediction: Prediction) -> list[TableSection]:
    """Return the table of measured and predicted speeds, and the table of predicted speeds with more replicas."""
    compute, link = prediction["compute"], prediction["link"]
    fit = (
        f"Fitted: a step of one replica on one core takes {compute['per_step'] * 1e3:.1f} ms and "
        f"{compute['per_example'] * 1e3:.2f} ms for each example. The slower of two replicas takes "
        f"{compute['slowest'][1]:.2f} times as long on average. A message between two processes of this machine takes "
        f"{link['alpha'] * 1e6:.0f} us, and its bytes are copied, sent and summed at {1e-9 / link['beta']:.2f} GB/s. "
        f"The gradients have {prediction['gradient_bytes'] / 1e6:.1f} MB."
    )
    checks = [
        [
            check["name"],
            str(check["replicas"]),
            format_number(check["measured"], ",.1f"),
            format_number(check["predicted"], ",.1f"),
            format_number(check["ratio"]["median"], ".2f"),
            f"{check['ratio']['lower']:.2f} to {check['ratio']['upper']:.2f}",
        ]
        for check in prediction["checks"]
    ]
    check_columns = ["contestant", "replicas", "examples/s", "predicted", "measured / predicted", "quartiles"]
    predictions = [
        [speeds["reduce"], f"{speeds['gbit_per_second']:g} Gbit/s", *(f"{speed:,.0f}" for speed in speeds["predicted"])]
        for speeds in prediction["examples_per_second"]
    ]
    note = (
        f"Examples per second by the number of replicas. Each replica has one core like the fitted one, and "
        f"{prediction['examples_per_replica']} examples in a step. A message takes {prediction['latency'] * 1e6:g} us "
        "and the time for its bytes; nothing is hidden behind computing."
    )
    return [
        TableSection("Predicted here", check_columns, checks, ("contestant",), [fit]),
        TableSection(
            "Predicted for more replicas",
            ["reduce", "link", *map(str, prediction["replicas"])],
            predictions,
            ("reduce",),
            [note],
        ),
        TableSection(
            "Predicted memory of a replica",
            ["strategy", *map(str, prediction["replicas"])],
            [[memory["strategy"], *map(format_bytes, memory["predicted"])] for memory in prediction["held_bytes"]],
            ("strategy",),
            ["Parameters, gradients and slots by the number of replicas, without buffers and activations."],
        ),
    ]


def print_result(result: BenchResult) -> None:
    """Print the tables with their sentences."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
    for section in build_sections(result):
        table = Table(title=section.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for index, name in enumerate(section.columns):
            table.add_column(name, justify="right" if index else "left", header_style="dim", overflow="fold")
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
        for sentence in section.sentences:
            console.print(sentence)
        console.print()
