"""Runs and records that were made on another machine, as sides of a diagnosis."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from common.compare.__main__ import main as compare
from common.config.compose import parse_config, save_config
from common.diagnose.__main__ import main
from common.diagnose.arguments import name_sides_by_paths, parse_arguments
from common.diagnose.moved_runs import check_imports, place_inputs
from common.errors import UserError
from common.run.export_bundle import export_bundle
from tests.conftest import Compose
from tests.unit.common.recording.numpy_script import NumpyScript

FACTS = {"framework": "torch", "strategy": "single", "replicas": 1, "status": "completed"}
FILES = ("data=files", "data.train=/there/train.jsonl", "data.validation=v.csv")
MakeFinishedRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_run(composed: Compose, tmp_path: Path) -> MakeFinishedRun:
    """Return a function that makes a run directory with a config and a summary."""

    def make(*overrides: str, name: str = "run") -> Path:
        (tmp_path / name).mkdir()
        save_config(parse_config(composed("strategy=single", *overrides)), tmp_path / name / "config.yaml")
        (tmp_path / name / "summary.json").write_text(json.dumps(FACTS))
        (tmp_path / name / "metrics.jsonl").touch()
        return tmp_path / name

    return make


@pytest.mark.slow
def test_paths_of_another_machine_are_named(make_run: MakeFinishedRun, tmp_path: Path) -> None:
    run_dir = make_run(*FILES, "cache_dir=/there/cache")
    with pytest.raises(UserError, match=r"not here: data\.train=/there/train\.jsonl, data\.validation=v\.csv; pass"):
        place_inputs(run_dir, ())
    with pytest.raises(UserError, match=r"not here: data\.validation=v\.csv; pass"):
        place_inputs(run_dir, {"data.train"})
    assert place_inputs(run_dir, {"data.train", "data.validation"}) == place_inputs(run_dir, {"data"}) == []
    assert not Path("/there").exists()
    (tmp_path / "v.csv").touch()
    (tmp_path / "cache").mkdir()
    run_dir = make_run("data=files", "data.train='*.csv'", "data.validation=v.csv", "cache_dir=cache", name="local")
    assert place_inputs(run_dir, ()) == ["cache_dir='cache'"]
    (tmp_path / "lockstep-x" / "inputs").mkdir(parents=True)
    run_dir = make_run(f"cache_dir={tmp_path}/lockstep-x/inputs", name="side-of-a-diagnosis")
    assert place_inputs(run_dir, ()) == []


@pytest.mark.slow
def test_paths_that_take_long_or_cannot_be(make_run: MakeFinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glob.iglob", None)  # which walks directories
    for number, path in enumerate(("x" * 5000, "~nosuchuser/x", "/there/**/x")):
        run_dir = make_run("data=files", f"data.train='{path}'", "data.validation=/**/x", name=f"{number}")
        with pytest.raises(UserError, match=r"not here: data\.train=[^,]*; pass these keys"):
            place_inputs(run_dir, ())


@pytest.mark.slow
def test_the_inputs_of_a_bundle_are_taken(
    make_run: MakeFinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that neither the paths of the config nor its cache are, though they are here."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "t.csv").touch()
    run_dir = make_run("data=files", "data.train=t.csv", "data.validation=t.csv", "cache_dir=cache")
    (run_dir / "inputs").mkdir()
    with pytest.raises(UserError, match="inputs/data: is not on this machine"):
        place_inputs(run_dir, ())
    monkeypatch.setattr("common.diagnose.moved_runs.verify_inputs", lambda *_: None)
    for keys in ((), {"data.seed"}, {"data.train", "data.validation"}, {"data"}):
        assert place_inputs(run_dir, keys) == [f"cache_dir='{run_dir}/inputs'"]
    with pytest.raises(UserError, match=r"^cache_dir: .*/run has its data .* in inputs/; remove cache_dir="):
        place_inputs(run_dir, {"cache_dir"})


@pytest.mark.slow
def test_keys_of_the_command_take_precedence(make_run: MakeFinishedRun, tmp_path: Path) -> None:
    (tmp_path / "t.csv").touch()
    run_dir = str(make_run(*FILES))
    keys = [
        "data.train=t.csv",
        "a.data.validation=t.csv",
        "b.data.validation='t.csv'",
        "train.seed=4",
        "b.train.seed=5",
    ]
    _, sides = parse_arguments([run_dir, run_dir, *keys])

    def find_value(side: int, key: str) -> str:
        return [text.partition("=")[2] for text in sides[side].overrides if text.startswith(f"{key}=")][-1]

    assert [find_value(side, "data.train") for side in (0, 1)] == ["t.csv", "t.csv"]
    assert [find_value(side, "data.validation") for side in (0, 1)] == ["t.csv", "'t.csv'"]
    assert [find_value(side, "train.seed") for side in (0, 1)] == ["4", "5"]


@pytest.mark.slow
def test_the_code_that_is_needed_is_named(make_run: MakeFinishedRun) -> None:
    run_dir = make_run("model=custom", "model.torch=models_there.resnet:build", "data=arrays", *FILES[1:])
    with pytest.raises(UserError, match=r"needs the module models_there of model\.torch=models_there\.resnet:build"):
        check_imports(run_dir)
    with pytest.raises(UserError, match="if you trust it, pass trust=true"):
        parse_arguments([str(run_dir), str(run_dir)])
    with pytest.raises(UserError, match="needs the module models_there"):
        parse_arguments([str(run_dir), str(run_dir), "model.torch=models_there.resnet:build"])
    Path("models_there").mkdir()
    make_run("model=custom", "model.torch=examples.x:build", "data=arrays", *FILES[1:], name="here")
    check_imports(Path("here"))


def test_sides_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "x.zip").touch()
    assert name_sides_by_paths(["b=x.zip", "steps=3", f"a={tmp_path}"]) == [str(tmp_path), "x.zip", "steps=3"]
    assert name_sides_by_paths(["a=torch:ddp", "b=tf:single"]) == ["a=torch:ddp", "b=tf:single"]
    with pytest.raises(UserError, match="b: must be a path, too"):
        name_sides_by_paths(["a=x.zip", "b=torch:ddp"])


def diagnose(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a diagnosis. Return its exit code, and diagnosis.json or the error."""
    try:
        code = main([*arguments, "output=out"])
    except SystemExit as left:
        return int(str(left.code)), capsys.readouterr().err
    capsys.readouterr()
    return code, Path("out/diagnosis.json").read_text()


def test_a_file_that_is_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x=1.zip").touch()
    code, error = diagnose(capsys, "x=1.zip", "runs/none")
    assert code == 2 and error.startswith("error: x=1.zip: a file, but no bundle, or one that is empty")


@pytest.mark.slow
def test_records_are_diagnosed_and_compared_from_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = NumpyScript().write(tmp_path / "old"), NumpyScript(ranks=2, decay=0.3).write(tmp_path / "new")
    expected = diagnose(capsys, "old", "new")
    for record in (old, new):
        export_bundle(record, None)
        record.rename(tmp_path / f"hidden-{record.name}")
    code, record_of_bundles = diagnose(capsys, "a=old.zip", "b=new.zip")
    named = record_of_bundles.replace("old.zip", "old").replace("new.zip", "new")
    assert (code, named) == expected and code == 1 and "old.zip" in record_of_bundles
    assert compare(["old=old.zip", "new=new.zip"]) == 0
    shown = capsys.readouterr().out
    assert "diverge at step 2 of 3" in shown and "python -m common.diagnose old.zip new.zip" in shown
    content = bytearray(Path("new.zip").read_bytes())
    with zipfile.ZipFile("new.zip") as archive:
        content[archive.getinfo("rank-1/step-00000002.safetensors").header_offset + 2000] ^= 1
    Path("new.zip").write_bytes(content)
    code, error = diagnose(capsys, "old.zip", "new.zip")
    assert code == 2 and error.startswith("error: new.zip: rank-1/step-00000002.safetensors: damaged: Bad CRC-32")
    Path("new.zip").write_bytes(content[:5000])
    assert compare(["old=old.zip", "new=new.zip", "--check"]) == 1
    assert capsys.readouterr().err.startswith("left out: new.zip: not a bundle, or cut off")
    with pytest.raises(SystemExit):
        compare(["new.zip", "new=new.zip"])
    assert capsys.readouterr().err.startswith("error: new.zip: not a bundle, or cut off")


@pytest.mark.slow
def test_code_of_the_command_takes_effect_or_is_refused(make_run: MakeFinishedRun) -> None:
    choices = ("model=custom", "data=arrays", "data.train=x", "data.validation=x", "extensions=[json]")
    Path("x").touch()
    old = str(make_run(*choices, "model.torch=examples.a:build", name="old=1"))  # named as runs of a sweep are
    new = str(make_run(*choices, "model.torch=examples.b:build", name="new=2"))
    trusted = ["model.torch=examples.a:build", "model.torch=examples.b:build", "extensions=[json]"]
    _, sides = parse_arguments([old, new, *trusted])
    codes = [[text for text in side.overrides if text.startswith("model.torch=")] for side in sides]
    assert codes == [["model.torch='examples.a:build'"], ["model.torch='examples.b:build'"]]
    _, sides = parse_arguments([old, new, "trust=true", "a.model.torch=examples.fixed:build"])
    assert [text for text in sides[0].overrides if text.startswith("model.torch=")][-1].endswith("fixed:build")
    for other in ("model.keras=examples.a:build", "extensions=[os]"):
        with pytest.raises(UserError, match=rf"^{re.escape(other)}: neither run has this code; .*: a\.{other[:5]}"):
            parse_arguments([old, new, "trust=true", other])
