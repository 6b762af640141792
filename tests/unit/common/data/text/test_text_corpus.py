"""The classes of a corpus, and the order of a model's outputs."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UserError
from tests.unit.common.data.text.text_samples import message, read_text


@pytest.mark.parametrize(
    ("labels", "keys", "checkpoint", "expected"),
    [
        (["0", "2"], {}, None, ([0, 2], ["0", "1", "2"])),  # CSV: they all read as integers
        (["0", "x"], {}, None, ([0, 1], ["0", "x"])),
        (["no", "yes"], {"classes": ["yes", "no"]}, None, ([1, 0], ["yes", "no"])),
        (["1", "2"], {"classes": ["1", "2"]}, None, ([0, 1], ["1", "2"])),  # a name comes before an index
        (["1", "0"], {"classes": ["a", "b", "c"]}, None, ([1, 0], ["a", "b", "c"])),
        (["1", "0"], {}, ["a", "b", "c"], ([1, 0], ["a", "b", "c"])),
        (["c", "a"], {}, ["c", "b", "a"], ([0, 2], ["c", "b", "a"])),
        (["0", "2"], {"classes": ["a", "b", "c"]}, ["c", "b", "a"], ([2, 0], ["c", "b", "a"])),  # matched by name
        (["a", "c"], {"classes": ["a", "b", "c"]}, ["LABEL_0", "LABEL_1", "LABEL_2"], ([0, 2], None)),  # by position
        (["1", "3"], {}, ["1", "2", "3"], ([0, 2], None)),  # names, though they are integers
        # Another number of classes, none of which the checkpoint has: the model gets a new head.
        (["y", "x"], {}, ["LABEL_0"], ([1, 0], ["x", "y"])),
        (["y", "x"], {}, ["LABEL_0", "LABEL_1", "LABEL_2"], ([1, 0], ["x", "y"])),
        (["y", "x"], {}, ["c", "b", "a"], ([1, 0], ["x", "y"])),
        (["y", "x"], {"classes": ["y", "x"]}, ["LABEL_0"], ([0, 1], ["y", "x"])),
        (["0", "3"], {}, ["a", "b"], ([0, 3], ["0", "1", "2", "3"])),
        (["true", "false"], {}, ["LABEL_0"], ([1, 0], ["false", "true"])),
    ],
)
def test_classes(tmp_path: Path, labels: list[str], keys: dict, checkpoint: list[str] | None, expected: tuple) -> None:
    lines = "".join(f"p,h,{label}\n" for label in labels)
    corpus = read_text(tmp_path / "f.csv", f"premise,hypothesis,label\n{lines}", checkpoint, **keys)
    assert (corpus.train.labels, corpus.classes) == (expected[0], expected[1] or checkpoint)


def test_classes_that_cannot_meet_the_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        read_text(tmp_path / "f.csv", "premise,hypothesis,label\np,h,a\n", ["x", "y"], classes=["a", "b"])
    assert message(raised).startswith(
        "data.classes: the data's classes ['a', 'b'] are not among the checkpoint's ['x', 'y']"
    )


@pytest.mark.parametrize("labels", [["p", "q"], ["p", "q", "x"]], ids=["as many", "one of them"])
def test_classes_that_may_be_misspelled(tmp_path: Path, labels: list[str]) -> None:
    lines = "".join(f"p,h,{label}\n" for label in labels)
    with pytest.raises(UserError, match=r"label 'p' is not one of the 2 classes \['x', 'y'\]; see data.classes"):
        read_text(tmp_path / "f.csv", f"premise,hypothesis,label\n{lines}", ["x", "y"])


def test_importing_is_light() -> None:
    heavy = ["torch", "tensorflow", "keras", "datasets", "pyarrow", "huggingface_hub"]
    code = f"import sys, common.data.text.text_corpus; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
