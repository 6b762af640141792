"""Checkpoints of the hub, and a hub that cannot be reached. test_hub_text.py and test_hub_images.py test data sets."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from common.config.data import HubSettings
from common.data.hub import _find_cached_builder
from common.errors import UserError
from tests.unit.common.data.conftest import BERT, MNLI, NEW, OLD, Client
from tests.unit.common.data.fake_hub import FakeHub

pytestmark = pytest.mark.slow

WAYS_OUT = ("data=files", "model.checkpoint=<directory>", "data=builtin_nli", "model=bert_tiny")


def test_checkpoint(client: Client, hub: FakeHub, tmp_path: Path) -> None:
    hub.gated.add("google-bert/gated")
    (hub.root / "models/google-bert/gated" / OLD).mkdir(parents=True)
    calls = [f"download_checkpoint({BERT!r}, {revision!r})" for revision in (OLD, None, "main")]
    old, *new, no_revision, no_id, gated = client(
        *calls,
        f"download_checkpoint({BERT!r}, 'v2')",
        "download_checkpoint('google-bert/other', None)",
        "download_checkpoint('google-bert/gated', None)",
    )
    files = {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"}
    assert {path.name for path in Path(old).iterdir()} == files
    assert new == [new[0]] * 2
    assert [Path(path, "config.json").read_text()[-40:] for path in (old, new[0])] == [OLD, NEW]
    assert no_revision == f"model.checkpoint={BERT}: no revision 'v2' on the hub; set model.revision to an existing one"
    assert no_id.startswith("model.checkpoint=google-bert/other: no such model on the hub")
    assert gated.startswith("model.checkpoint=google-bert/gated: gated; ask for access")

    hub.stop()
    for environment in ({"HF_HUB_OFFLINE": "1"}, {}):
        assert client(*calls, **environment) == [old, *new]


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_unreachable_with_an_empty_cache(client: Client, hub: FakeHub, environment: dict[str, str]) -> None:
    hub.stop()
    data, checkpoint, main, seconds_between_retries = client(
        "read_corpus(mnli())",
        f"download_checkpoint({BERT!r}, {OLD!r})",
        f"download_checkpoint({BERT!r}, None)",
        "sum(slept)",
        **environment,
    )
    assert seconds_between_retries < 5, "the libraries' retries take half a minute"
    assert data.startswith(f"data.path={MNLI} ({OLD}): not in the local cache and the hub cannot be reached (")
    assert checkpoint.startswith(f"model.checkpoint={BERT} ({OLD}): not in the local cache")
    assert main.startswith(f"model.checkpoint={BERT} (main): not in the local cache")
    for way in WAYS_OUT:
        assert all(way in error for error in (data, checkpoint, main))


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ("- {config_name: default, data_files: a}\n- {config_name: mrpc, data_files: b}", None),  # default not in cache
        ("- {config_name: mrpc, data_files: b}", "mrpc"),
        ("- {config_name: cola, data_files: a}\n- {config_name: mrpc, data_files: b, default: true}", "mrpc"),
        (
            "- {config_name: cola, data_files: a}\n- {config_name: mrpc, data_files: b}",
            "has no default; set it to one of",
        ),
    ],
)
def test_the_only_subset_in_the_cache_may_not_be_the_one_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configs: str, expected: str | None
) -> None:
    import datasets
    import huggingface_hub

    (tmp_path / "owner___glue/mrpc/0.0.0" / OLD).mkdir(parents=True)
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}\n---\n")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: str(tmp_path / "README.md"))
    cache_module = import_module("datasets.packaged_modules.cache.cache")
    monkeypatch.setattr(cache_module, "Cache", lambda **options: options["config_name"])
    data = HubSettings(
        kind="hub", allow_change=False, path="owner/glue", subset=None, revision=OLD, train_split="train",
        validation_split="validation", premise="premise", hypothesis=None, label="label", classes=None,
    )  # fmt: skip
    if expected is None or expected == "mrpc":
        assert _find_cached_builder(data) == expected
    else:
        with pytest.raises(UserError, match=f"data.subset=null: owner/glue {expected} cola, mrpc"):
            _find_cached_builder(data)
    assert _find_cached_builder(replace(data, subset="mrpc")) == "mrpc"
