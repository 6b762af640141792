"""A pair of the zoo: one public architecture as libraries of both frameworks define it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CLASSES = 10  # the number of logits that the models of a classification return


@dataclass(frozen=True)
class ZooPair:
    """Two models of one architecture, small and with random weights.

    Attributes:
        name: The name of the architecture, such as gpt2.
        torch: The factory of PyTorch's model as module:function.
        keras: The factory of Keras's model as module:function.
        inputs: The inputs by name, as the command `common.map` takes them, such as int32[4,12]<100.
        torch_source: The class and the library of PyTorch's model, such as transformers GPT2Model.
        keras_source: The same of Keras's model.
        task: Overrides for training, such as {"task": "regression"}; if empty, the models return logits of CLASSES.
        label_shape: The shape of the labels of an example, such as the height and the width of an image.
    """

    name: str
    torch: str
    keras: str
    inputs: Mapping[str, str]
    torch_source: str
    keras_source: str
    task: Mapping[str, str] = field(default_factory=dict)
    label_shape: tuple[int, ...] = ()
