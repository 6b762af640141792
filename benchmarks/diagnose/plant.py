"""A planted cause: the arguments of common.diagnose, and the cause that it must name.

The constants are arguments that plants share: the small models of faulty_models_torch.py and faulty_models_keras.py
with the data of faulty_data.py, the strategy of faulty_strategy.py, and the BERT of faulty_bert.py.
"""

from dataclasses import dataclass

TEXT = (
    "model=custom model.torch=benchmarks.diagnose.faulty_models_torch:build_text "
    "model.tf=benchmarks.diagnose.faulty_models_keras:build_text "
    "data=arrays data.train={data}/text.npz data.validation={data}/text.npz train.global_batch_size=7 train.steps=20 "
    "optimizer.learning_rate=0.01"
)
IMAGES = TEXT.replace(":build_text", ":build_images").replace("text.npz", "images.npz") + " data.channels=[images]"
SEQUENCES = TEXT.replace(":build_text", ":build_sequences")
SEARCH_PATH = "hydra.searchpath=[pkg://benchmarks.diagnose.conf]"
FAULTY_STRATEGY = f"extensions=[benchmarks.diagnose.faulty_strategy] {SEARCH_PATH}"
FAULTY_BERT = (
    f"extensions=[benchmarks.diagnose.faulty_bert] {SEARCH_PATH} model=faulty_bert data.train_examples=60 "
    "data.validation_examples=12"
)
DROPOUT = "+model.arguments.dropout=0.1"


@dataclass(frozen=True)
class Plant:
    """A pair of training runs with a planted cause, or without any.

    Attributes:
        name: Name in the table.
        arguments: Arguments of common.diagnose; `{data}` stands for the directory of the data.
        causes: Causes as common.diagnose calls them. The first one that it names must be one of these. Empty if nothing
            is planted.
        other_causes: The same for a second planted cause, which must be named too.
    """

    name: str
    arguments: str
    causes: tuple[str, ...]
    other_causes: tuple[str, ...] = ()
