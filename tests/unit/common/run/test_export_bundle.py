"""Bundles of runs and records, and runs that take their data and initial weights from one."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from common.config.compose import save_config
from common.config.models import CustomModelSettings
from common.errors import UserError
from common.models.initial_weights import InitialCheckpoint
from common.recording.record_reader import open_record
from common.records.bundle import unpack_bundle
from common.run.export_bundle import export_bundle
from common.run.packed_inputs import _check_code, _describe_data, _describe_weights, find_packed_inputs
from common.run.prepare import prepare_inputs
from common.run.resume import find_checkpoint
from tests.conftest import MakeConfig
from tests.unit.common.recording.numpy_script import NumpyScript
from tests.unit.common.run.conftest import MakeRun

FACTS = {"framework": "torch", "strategy": "single", "replicas": 1, "status": "completed"}


@pytest.fixture
def finished_run(make_run: MakeRun) -> Path:
    """Return the directory of a run that is completed."""
    run_dir = make_run("run")
    fingerprints = json.loads((run_dir / "prepared.json").read_text())["fingerprints"]
    names = {"token_cache": fingerprints["data"], "initial_weights": fingerprints["initial weights"]}
    (run_dir / "summary.json").write_text(json.dumps({**FACTS, "fingerprints": names}))
    return run_dir


@pytest.fixture
def unpacked(finished_run: Path, tmp_path: Path) -> Path:
    """Return the run from its bundle. The run directory and the cache are removed."""
    bundle, _ = export_bundle(finished_run, tmp_path / "x.zip")
    shutil.rmtree(finished_run)
    shutil.rmtree(tmp_path / "cache")
    unpack_bundle(bundle, tmp_path / "unpacked")
    return tmp_path / "unpacked"


@pytest.mark.slow
def test_the_bundle_of_a_run_has_what_a_diagnosis_reads(finished_run: Path, tmp_path: Path) -> None:
    (finished_run / "checkpoints" / "step-00000004" / "model.safetensors").unlink()
    bundle, sizes = export_bundle(finished_run, None)
    assert bundle == Path("run.zip") and bundle.exists()
    assert sizes.keys() == {"config, rows and summary", "data", "initial weights", "checkpoints"}
    unpack_bundle(bundle, tmp_path / "unpacked")
    names = {str(path.relative_to(tmp_path / "unpacked")) for path in (tmp_path / "unpacked").rglob("*")}
    assert {"config.yaml", "summary.json", "metrics.jsonl", "evals.jsonl", "inputs/data/train.tokens.npy"} <= names
    assert {"checkpoints/step-00000002/optimizer.safetensors", "inputs/weights/model.safetensors"} <= names
    assert not [name for name in names if name.startswith(("tensorboard", "prepared", "checkpoints/step-00000004"))]
    again, _ = export_bundle(tmp_path / "unpacked", tmp_path / "again.zip")
    assert again.read_bytes() == bundle.read_bytes()


@pytest.mark.slow
def test_a_run_takes_what_the_bundle_brings(unpacked: Path, small_config: MakeConfig) -> None:
    inputs = unpacked / "inputs"

    def find_names(*overrides: str) -> list[str]:
        _, prepared = prepare_inputs(small_config(f"cache_dir={inputs}", *overrides), None)
        return [prepared.cache.directory.name, prepared.initial.directory.name.partition("-")[0]]

    assert find_names("model.name=x", "data.allow_change=true", "train.precision=float64") == ["data", "weights"]
    assert not list(inputs.glob("*-*"))
    assert find_names("train.seed=5") == ["data", "weights"] and list(inputs.glob("weights-*"))
    assert not list(inputs.glob("tokens-*"))
    assert find_names("data.seed=5")[0].startswith("tokens-")
    assert find_names("model.max_vocabulary=150")[0].startswith("tokens-")


@pytest.mark.slow
def test_no_path_of_the_bundle_is_read(unpacked: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    """Test what is built anew with a path of the packed config, a file here, and that its extensions stay out."""
    (tmp_path / "train.csv").write_text("sentence,label\n")
    names = [f"data.train={tmp_path}/train.csv", f"data.validation={tmp_path}/train.csv"]
    config = make_config(f"cache_dir={unpacked / 'inputs'}", "data=files", *names)
    save_config(replace(config, extensions=["module_of_the_sender"]), unpacked / "config.yaml")
    changed = replace(config, train=replace(config.train, max_length=9))
    with pytest.raises(UserError, match=r"^data\.train=/.*, data\.validation=/.*: of the machine that made the bundle"):
        find_packed_inputs(changed)
    here = replace(changed, data=replace(config.data, train="./a.csv", validation="./b.csv"))  # type: ignore[call-arg]
    assert find_packed_inputs(here) == (None, None)
    pretrained = make_config(
        f"cache_dir={unpacked / 'inputs'}", "data=files", *names, "model=pretrained", f"model.checkpoint={tmp_path}"
    )
    save_config(pretrained, unpacked / "config.yaml")
    cache, initial = find_packed_inputs(replace(pretrained, task=make_config("task.label_smoothing=0.1").task))
    assert cache is not None and initial is not None
    with pytest.raises(UserError, match=rf"^model\.checkpoint={tmp_path}: .* that change the initial weights, or give"):
        find_packed_inputs(replace(pretrained, train=replace(pretrained.train, seed=5)))


@pytest.mark.slow
def test_inputs_of_another_version(unpacked: Path, small_config: MakeConfig, tmp_path: Path) -> None:
    facts = json.loads((unpacked / "bundle.json").read_text())
    assert facts["formats"].keys() == {"common.data.text.token_cache", "common.models.initial_weights"}
    formats = [{**facts["formats"], name: 999} for name in facts["formats"]]
    for other in (*formats, None, ["os"]):
        (unpacked / "bundle.json").write_text(json.dumps({**facts, "formats": other}))
        with pytest.raises(UserError, match=r"inputs: made by another version of Lockstep, with another format of com"):
            find_packed_inputs(small_config(f"cache_dir={unpacked / 'inputs'}"))
        with pytest.raises(UserError, match="made by another version of Lockstep"):
            export_bundle(unpacked, tmp_path / "again.zip")
    (unpacked / "bundle.json").unlink()
    with pytest.raises(UserError, match=r"bundle\.json: cannot be read"):
        find_packed_inputs(small_config(f"cache_dir={unpacked / 'inputs'}"))


@pytest.mark.slow
def test_damaged_data_of_a_bundle(unpacked: Path, small_config: MakeConfig) -> None:
    config = small_config(f"cache_dir={unpacked / 'inputs'}")
    (unpacked / "inputs" / "data" / "train.tokens.npy").write_bytes(b"\x80\x04pickle")
    with pytest.raises(UserError, match=r"inputs/data: damaged: ValueError; make the bundle again"):
        find_packed_inputs(config)


def test_weights_name_no_code(make_config: MakeConfig, tmp_path: Path) -> None:
    model = make_config(
        "model=custom", "model.torch=my:build", "data=arrays", "data.train=x", "data.validation=x"
    ).model
    assert isinstance(model, CustomModelSettings)
    model = replace(model, arguments={"width": 3}, name="os:system", map="os:system", checkpoint="os:system")
    initial = InitialCheckpoint(tmp_path, "")

    def check(factories: object, arguments: object, settings: CustomModelSettings = model) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"factories": factories, "arguments": arguments}))
        _check_code(settings, initial)

    check({"torch": "my:build"}, {"width": 3})
    (tmp_path / "config.json").write_text('{"factories":' * 100_000)
    with pytest.raises(UserError, match=r"config\.json: not valid JSON"):
        _check_code(model, initial)
    for factories, arguments in (
        ({"torch": "os:system"}, {"width": 3}),
        ({"torch": "my:build"}, {"width": 4}),
        ({"torch": "my:build", "tf": "my:build"}, {"width": 3}),
        ({}, {"width": 3}),
        ({"torch": ["my:build"]}, {"width": 3}),
        (["my:build"], {"width": 3}),
        (None, {"width": 3}),
    ):
        with pytest.raises(UserError, match="names other code or arguments than the config"):
            check(factories, arguments)
    of_keras = replace(model, torch=None, keras="my:build")
    check({"torch": "my:build", "tf": "my:build"}, {"width": 3}, of_keras)
    with pytest.raises(UserError, match="names other code or arguments than the config"):
        check({"torch": "my:build", "tf": "os:system"}, {"width": 3}, of_keras)


@pytest.mark.slow
def test_what_cannot_be_exported(finished_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.zip"
    with pytest.raises(UserError, match=r"neither a finished run, which has summary\.json, nor a record"):
        export_bundle(tmp_path, out)
    with pytest.raises(UserError, match="exists; choose another path"):
        export_bundle(finished_run, finished_run)
    summary = (finished_run / "summary.json").read_text()
    (finished_run / "summary.json").write_text(json.dumps({**FACTS, "fingerprints": {"token_cache": "x"}}))
    with pytest.raises(UserError, match="has other content than the run used"):
        export_bundle(finished_run, out)
    (finished_run / "summary.json").write_text(summary)
    (finished_run / "evals.jsonl").rename(tmp_path / "evals")
    (finished_run / "evals.jsonl").symlink_to(tmp_path / "evals")
    with pytest.raises(UserError, match=r"evals\.jsonl: not a regular file; links are not followed"):
        export_bundle(finished_run, out)
    (finished_run / "evals.jsonl").unlink()
    prepared = json.loads((finished_run / "prepared.json").read_text())
    (finished_run / "prepared.json").write_text(json.dumps({**prepared, "initial": ["x"]}))
    with pytest.raises(UserError, match=r"prepared\.json: damaged: names no data or no initial weights"):
        export_bundle(finished_run, out)
    (finished_run / "prepared.json").write_text(json.dumps(prepared))
    shutil.rmtree(prepared["cache"])
    with pytest.raises(UserError, match="is not on this machine; start the run's command again to build it"):
        export_bundle(finished_run, out)
    (finished_run / "prepared.json").unlink()
    with pytest.raises(UserError, match=r"has no prepared\.json, which names its data"):
        export_bundle(finished_run, out)
    assert not list(tmp_path.glob("x.zip*"))


def test_the_bundle_of_a_record(tmp_path: Path, small_config: MakeConfig) -> None:
    record = NumpyScript(ranks=2).write(tmp_path / "old")
    (record / "notes.txt").write_text("not of the record")
    bundle, sizes = export_bundle(record, None)
    assert bundle == Path("old.zip") and sizes.keys() == {"record"}
    unpack_bundle(bundle, tmp_path / "new")
    assert len(open_record(tmp_path / "new").ranks) == 2
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"rank-0", "rank-1"}
    with pytest.raises(UserError, match=r"old\.zip: a bundle; unpack it first"):
        open_record(bundle)
    with pytest.raises(UserError, match=r"resume=old\.zip: a bundle; unpack it first"):
        find_checkpoint(small_config("resume=old.zip"), None)


def test_transforms_do_not_decide_the_data_but_the_inputs_of_the_model(make_config: MakeConfig) -> None:
    plain, resized = (
        asdict(make_config("model=convnet", *overrides)) for overrides in ((), ("data.transforms=[{resize: 16}]",))
    )
    assert _describe_data(plain) == _describe_data(resized)
    assert _describe_weights(plain) != _describe_weights(resized)
    for key in ("transforms", "transform_evaluation"):
        del plain["data"][key]  # as in the config of an earlier version
    assert _describe_weights(plain) == _describe_weights(asdict(make_config("model=convnet")))
