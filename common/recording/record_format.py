"""Format of a record: the files of its directory, and the fields of record.json.

A record holds what a training script computed in its first optimizer steps. It is a directory with record.json and one
safetensors file for the state before the first step and for each step, and operations.json (operation_format.py) if the
recorder sees operations. The record of a script with several processes is a directory with one such directory for each
rank: rank-0, rank-1 and so on.

The name of a tensor is a path. M is the number of a micro-batch within its step, from 0. A parameter, buffer or
variable has its name in the framework, without the prefixes of wrappers such as DistributedDataParallel. Arrays have
the layout of their framework. Arrays in bfloat16 are stored in float32.

    batch/M/input/NAME       what the model received: NAME is a keyword, the position of an argument, or the path of
                             nested keys and positions, joined by dots
    batch/M/label/NAME       what the loss received besides the model's outputs; operand_0, operand_1 and so on are
                             what a script combines with the outputs if it computes the loss without a loss function
    batch/M/other/NAME       what the script's batch has besides them, such as the weights of examples by which the
                             script multiplies the losses. NAME is the path of nested keys and positions. Absent if the
                             recorder does not see the batch: it sees batches of torch.utils.data.DataLoader, of Keras's
                             fit, and among the arguments of a tf.function
    batch/M/output/NAME      what the model returned
    batch/M/call/K/...       input/NAME and output/NAME of a later call, if the script calls the model several times in
                             a micro-batch. K is the number of the call, from 1; call 0 has no such prefix
    layer/PATH/input         first tensor that a layer received in the first call of the first micro-batch
    layer/PATH/output        first tensor that it returned
    followed/PATH            first tensor that the layer at PATH returns for what its counterpart in a followed record
                             received in the first micro-batch
    gradient/NAME            gradient that the optimizer received
    gradient_unclipped/NAME  gradient before the script clipped it or changed it in another way; absent if it did not,
                             if that was not seen, if an earlier step has one that the script changed in the same way,
                             or if clip_factors and decays of the step have the numbers by which gradient/NAME differs
                             from it: the factor times this gradient, plus the decay times the weight before the step
    gradient_local/NAME      gradient of this rank before the reduction, in the files of the steps up to the first
                             update, which may be skipped; absent with one rank, or if it was not seen
    weight/NAME              weights, buffers and variables after the step
    changed_weight/NAME      weight before the update of the step, if the script changed it since the update before;
                             absent in older records
    slot/NAME/SLOT           optimizer's arrays after the step, in the file of the first update

The file of the state before the first step has weight/NAME and slot/NAME/SLOT only. A recorder may write layer/PATH in
the file of the first step only. Equal tensors of a file, such as the input of a layer and the output of the layer
before it, are stored once: record.json has the other names among the aliases.

Format 1 has gradient_unclipped/NAME in place of clip_factors. The files of all its steps have gradient_local/NAME. The
files of the first and the last step have slot/NAME/SLOT.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

from typing import TypedDict

FORMAT = 2
READABLE_FORMATS = (1, 2)
RECORD, START = "record.json", "start.safetensors"
STEP_PATTERN, RANK_PATTERN = "step-{:08d}.safetensors", "rank-{}"

REFUSED = "batches: following ended with an error: "  # begin of the sentence about why a script stopped to follow
ROOT = "model"  # path of the model itself among its layers
OPERAND = "operand_"  # begin of the names of labels that may also be masks or weights


def name_call(micro_batch: int, call: int) -> str:
    """Return the first part of the names of what a call of the model received and returned.

    Args:
        micro_batch: The number of the micro-batch within its step, from 0.
        call: The number of the call within the micro-batch, from 0.
    """
    return f"batch/{micro_batch}/call/{call}" if call else f"batch/{micro_batch}"


class Environment(TypedDict):
    """Versions, device and flags that decide the results of computations."""

    versions: dict[str, str]  # versions of Python, the framework, NumPy, and the library that trains, by package
    device: str  # "cpu", or the name of the accelerator
    flags: dict[str, object]  # by name, such as "tf32", "autocast", "deterministic", "threads", "compiled"


class ParameterGroup(TypedDict):
    """Parameters that an optimizer updates with the same hyperparameters."""

    parameters: list[str]
    hyperparameters: dict[str, object]  # by their names in the framework, such as "lr", "betas", "weight_decay"


class OptimizerFacts(TypedDict):
    """An optimizer with all of its hyperparameters."""

    name: str  # qualified name of the class, such as "torch.optim.adamw.AdamW"
    groups: list[ParameterGroup]
    missing: list[str]  # trainable parameters of the model that the optimizer does not update
    frozen: list[str]  # parameters of the model that are not trainable


class LossFacts(TypedDict):
    """A loss function with the arguments that are no arrays."""

    name: str  # such as "cross_entropy", or the class "keras.losses.SparseCategoricalCrossentropy"
    arguments: dict[str, object]  # such as {"reduction": "mean", "label_smoothing": 0.0}


class LossTermFunctions(TypedDict, total=False):
    """Additional facts of a term on which the loss depends through other functions than sums and products."""

    functions: list[str]  # names of these functions in the framework, such as "sqrt"; the share is then None


class LossTerm(LossFacts, LossTermFunctions):
    """A term of the loss of a micro-batch: a call of a loss function."""

    value: float  # mean of the numbers that the function returned
    share: float | None  # sum of these numbers times the gradient of the loss by them; None if that was not seen


class DescribedLayer(TypedDict):
    """A layer of a model."""

    kind: str  # name of the class of the framework that the layer is or derives from, otherwise of its own class
    path: str  # names from the model to the layer, separated by dots or slashes
    attributes: dict[str, object]  # public plain values, by their names in the framework, such as {"eps": 1e-5}
    variables: dict[str, str]  # names of its own variables by role, such as {"weight": "fc1.weight"}
    unflattened_shape: list[int] | None  # sizes of the axes that the model merged to the last one of this layer's input
    composite: str | None  # path of the attention or Bidirectional layer that contains this layer
    training: bool  # whether the layer was in training mode


class LayerFacts(DescribedLayer, total=False):
    """A layer that the forward pass entered."""

    # Paths of the layers with variables from whose outputs other code computed its input; absent if none are known
    sources: list[str]
    source: str  # the only one of these, in older records
    # Name of the attribute of the outer layer that holds the layer, if its path does not say it; absent if none does
    attribute: str


class VariableFacts(TypedDict):
    """A parameter, buffer or variable."""

    shape: list[int]
    dtype: str  # such as "float32"
    trainable: bool


class RandomFacts(TypedDict, total=False):
    """Additional facts of a model that draws random numbers; absent if the recorder does not see the draws."""

    random_layers: list[str]  # paths of the layers whose own code draws them; "model" stands for the model
    random_state: str  # hash of the state of the generator before the first forward pass


class ModelFacts(RandomFacts):
    """A model: its layers in the order in which the first forward pass entered them, and its variables."""

    name: str  # qualified name of the class
    layers: list[LayerFacts]
    variables: dict[str, VariableFacts]
    tied: list[list[str]]  # lists of names that one shared variable has


class StepEvents(TypedDict, total=False):
    """Facts that not every step has; absent if they did not happen, or if the recorder cannot see them."""

    clip_factors: dict[str, float]  # factors by which gradients were multiplied before the update, by parameter
    decays: dict[str, float]  # multiples of the weights that the script added to gradients, by parameter
    clipped_rows: list[str]  # variables that Keras clipped before it added the repeated rows of sparse gradients
    clipped_apart: bool  # whether the script clipped the gradient of each of several parameters by itself
    clipped_parts: float  # norm to which the script clipped the gradients after each of several micro-batches
    dropped_micro_batches: int  # number of micro-batches whose gradients the script set to zero before the update
    passes_of_others: int  # number of micro-batches whose gradients were for another optimizer, and were not cleared
    # Losses of several backward passes through the forward passes of each micro-batch; empty if there was one pass
    pass_losses: list[list[float]]
    changed_weights: list[str]  # variables that the script changed between the update before and this one
    received_states: dict[str, bool]  # whether recurrent layers of PyTorch received a state that is not 0, by path
    evaluation_mode: bool  # whether the model of PyTorch was in evaluation mode
    terms: list[list[LossTerm]]  # the calls of loss functions on which the loss of each micro-batch depends
    keys: dict[str, str]  # keys in the script's batch of what it passed on unchanged, by input/NAME and label/NAME
    calls: list[int]  # calls of the model in each micro-batch; absent in older records, which may hold the first only


class StepFacts(StepEvents):
    """Numbers of one recorded optimizer step."""

    step: int  # number of the step since the recorder was made, from 1
    micro_batches: int  # number of micro-batches
    losses: list[float | None]  # loss of each micro-batch, as the script computed it; None if it was not seen
    rates: list[float]  # learning rate of each parameter group, as the update used it
    loss_scale: float | None  # factor by which a gradient scaler multiplied the loss; None without a scaler
    skipped: bool  # whether a gradient scaler skipped the update
    max_norm: float | None  # norm to which the script clipped the gradients; None if no clipping was seen


class AbridgedTensor(TypedDict):
    """A tensor that did not fit into the record: a sample stands in its place.

    The sample is stored under the tensor's name, and its positions in the flattened tensor under "sample/NAME".
    """

    shape: list[int]
    norm: float
    sha256: str  # hash of the whole tensor's bytes in C order


class FollowFacts(TypedDict, total=False):
    """Additional facts of a record that follows another record."""

    follows: str  # SHA-256 of the file that holds the first step of the first process in the other record


class RecordFacts(FollowFacts):
    """The content of record.json."""

    format: int
    framework: str  # "torch" or "tensorflow"
    rank: int
    world_size: int
    complete: bool  # whether all steps that were asked for are recorded
    environment: Environment
    model: ModelFacts | None  # None until the first step
    optimizer: OptimizerFacts | None
    scheduler: dict[str, object] | None  # its "name" and its hyperparameters; None if no scheduler was seen
    loss: LossFacts | None  # None if it was not seen
    steps: list[StepFacts]
    abridged: dict[str, dict[str, AbridgedTensor]]  # the abridged tensors of each file, by name
    aliases: dict[str, dict[str, str]]  # for each file, by name: the name under which the same tensor is stored
    not_recorded: list[str]  # a sentence for each thing that the recorder could not see
