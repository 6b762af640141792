"""The content of bench.json: the figures that the tables, the page and the document of a benchmark show."""

from typing import NotRequired, TypedDict

from common.profile.lanes import Lane


class SpreadRow(TypedDict):
    """The median and the quartiles of a figure over the rounds."""

    median: float
    lower: float
    upper: float


class MatrixRate(SpreadRow):
    """The rate of matrix products in one precision, in operations per second."""

    rounds: list[float]


class ContestantResult(TypedDict):
    """The figures of one contestant; rates are medians over the rounds."""

    name: str
    framework: str
    script: str | None  # None for a run of Lockstep
    strategy: str
    replicas: int
    precision: str
    matmul_precision: str  # precision of matrix products
    overrides: list[str]
    examples_per_second: float
    tokens_per_second: float
    ratio: SpreadRow  # speed divided by the speed of the reference in the same round
    scaling_efficiency: SpreadRow | None  # speed divided by the speed of one replica and by the number of GPUs, if any
    utilisation: SpreadRow | None  # operations per second, without padding, as a share of matrix_flops_per_second
    peak_memory_bytes: int
    start_up_seconds: float
    rounds: dict[str, list[float]]  # for each counter, such as "examples": its rate per second in each round
    time_split: dict[str, float] | None  # the share of each phase in the time of a step
    timeline: dict[str, Lane] | None  # the last profiled step: its spans of time by phase
    useful_flops_per_example: NotRequired[float]  # mean floating-point operations of an example, without padding
    compilations: NotRequired[int]
    compile_seconds: NotRequired[float]


class ComputeCost(TypedDict):
    """Seconds of one core for a step of a replica: per_step + per_example * examples."""

    per_step: float
    per_example: float
    slowest: list[float]  # for each of Prediction.replicas (1, 2, 4, ...), the time of the slowest one over the mean


class LinkCost(TypedDict):
    """The cost of a message between two processes: alpha in seconds, beta in seconds per byte."""

    alpha: float
    beta: float


class PredictedSpeeds(TypedDict):
    """The predicted examples per second for each number of replicas, with one link and one way to reduce."""

    gbit_per_second: float
    reduce: str
    predicted: list[float]


class PredictedBytes(TypedDict):
    """The predicted bytes of parameters, gradients and slots of a replica, for each number of replicas."""

    strategy: str
    predicted: list[float]


class PredictionCheck(TypedDict):
    """A measured speed, in examples per second, beside the predicted one."""

    name: str
    replicas: int
    measured: float
    predicted: float
    ratio: SpreadRow  # measured over predicted


class Prediction(TypedDict):
    """The prediction for more replicas, and the measurements to which it was fitted."""

    compute: ComputeCost
    link: LinkCost
    gradient_bytes: int
    examples_per_replica: int
    latency: float  # seconds of a message, assumed for more replicas
    replicas: list[int]
    examples_per_second: list[PredictedSpeeds]
    held_bytes: list[PredictedBytes]
    checks: list[PredictionCheck]


class BenchSettings(TypedDict):
    """The options of the benchmark that its figures depend on."""

    rounds: int
    block_seconds: float
    warmup_steps: int
    reference: str


class BenchResult(TypedDict):
    """The content of bench.json."""

    format: int  # version of this format
    title: str
    date: str  # ISO 8601, with the time zone
    hardware: dict[str, str | int]
    versions: dict[str, str]
    overrides: list[str]
    settings: BenchSettings
    matrix_flops_per_second: dict[str, MatrixRate]  # speed of products of matrices, by precision
    contestants: list[ContestantResult]
    prediction: Prediction | None
