import os
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError, build_write_error, describe_error, escape_control_characters, find_user_file


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("3 requested and\n 2 written"), "3 requested and 2 written"),
        (ValueError("too large"), "too large"),
    ],
)
def test_what_cannot_be_written(error: Exception, reason: str) -> None:
    assert (
        str(build_write_error("a/b", error)) == f"a/b: cannot be written ({reason}); make space or choose another place"
    )


def test_an_error_sends_no_commands_to_a_terminal() -> None:
    error = UserError("run \x1b]0;title\x07\x9b2J\u202e.json: \r\x00\x7f\tä")
    assert str(error) == r"run \x1b]0;title\x07\x9b2J\u202e.json: \r\x00\x7f" + "\tä"
    assert escape_control_characters(str(error)) == str(error)


FRAMES = """in user code:

    File "/opt/lockstep/tf_impl/step.py", line 25, in compute_outputs  *
        outputs = model(inputs, training=training)
    File "{file}", line 7, in call  *
        x = ops.reshape(x, (-1, h * w, c))

    TypeError: """
KERAS = (
    "Exception encountered when calling Net.call().\n\n\x1b[1m{}\x1b[0m\n\nArguments received by Net.call():\n  • x=3"
)
GRAPH = """Graph execution error:

Detected at node MatMul defined at (most recent call last):
<stack traces unavailable>
  File "{file}", line 9, in call

Matrix size-incompatible: In[0]: [2,3], In[1]: [4,5]
\t [[{{{{node MatMul}}}}]] [Op:__inference_f_12]"""
PLAIN = "unsupported operand type(s) for *: 'NoneType' and 'NoneType'"
MESSAGES = {  # the message of a TypeError, and what is left of it
    "plain": ("mat1 and mat2\n cannot be multiplied", "mat1 and mat2 cannot be multiplied"),
    "traced": (FRAMES + PLAIN, f"{PLAIN} (FILE, line 7)"),
    "of Keras": (KERAS.format(PLAIN), PLAIN),
    "of Keras, traced": (FRAMES + KERAS.format(PLAIN).replace("\n", "\n    "), f"{PLAIN} (FILE, line 7)"),
    "traced within Keras": (KERAS.format(FRAMES + PLAIN), f"{PLAIN} (FILE, line 7)"),
    "of a graph": (GRAPH, "Matrix size-incompatible: In[0]: [2,3], In[1]: [4,5] (FILE, line 9)"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_remains_of_an_error_of_a_framework(name: str) -> None:
    message, expected = MESSAGES[name]
    error = TypeError(message.replace("{file}", __file__).replace("{{", "{").replace("}}", "}"))
    assert describe_error(error) == f"TypeError: {expected.replace('FILE', os.path.relpath(__file__))}"


def test_an_error_names_the_last_line_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "model.py"
    source.write_text("import json\n\ndef build():\n    return json.loads('{')\n")
    functions: dict[str, Any] = {}
    exec(compile(source.read_text(), source, "exec"), functions)
    with pytest.raises(ValueError, match="Expecting") as raised:
        functions["build"]()
    assert describe_error(raised.value).endswith("(char 1) (model.py, line 4)")


def test_packages_of_another_environment_are_not_the_code_of_the_user(tmp_path: Path) -> None:
    """PYTHONPATH or a .pth file may name their folder, and an installer may link their files."""
    packages = tmp_path / "venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    source = tmp_path / "model.py"
    source.touch()
    (packages / "package.py").touch()
    (packages / "linked.py").symlink_to(source)
    files = (source, packages / "package.py", packages / "linked.py")
    assert [find_user_file(str(file)) for file in files] == [str(source), None, None]
