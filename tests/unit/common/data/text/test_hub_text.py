"""A data set of text on the hub."""

import pytest

from common.config.data import HubSettings
from common.data.identity import identify
from tests.unit.common.data.conftest import MNLI, NEW, OLD, Client
from tests.unit.common.data.fake_hub import FakeHub


def corpus(commit: str) -> dict:
    return {
        "train": {
            "premises": [f"{commit[:3]} {i}" for i in (0, 1, 3)],
            "hypotheses": ["h0", "h1", "h3"],
            "labels": [2, 0, 1],
            "dropped": 1,
        },
        "validation": {"premises": ["v 1"], "hypotheses": ["h1"], "labels": [1], "dropped": 1},
        "classes": ["entailment", "neutral", "contradiction"],
    }


@pytest.mark.slow
def test_data_set(client: Client, hub: FakeHub) -> None:
    old, new, checkpoint_first, renamed, *errors = client(
        "read_corpus(mnli())",
        "read_corpus(mnli(revision='main'))",
        "read_corpus(mnli(), ['contradiction', 'entailment', 'neutral'])",
        "read_corpus(mnli(classes=['E', 'N', 'C']))",
        "read_corpus(mnli(validation='validation'))",
        "read_corpus(mnli(subset='mnli'))",
        "read_corpus(mnli(revision='v2'))",
        "read_corpus(mnli(path='nyu-mll/other'))",
        "read_corpus(mnli(path='not an id'))",
        "read_corpus(mnli(text='sentence1'))",
        "read_corpus(mnli(), ['x', 'y', 'z'])",
    )
    assert (old, new) == (corpus(OLD), corpus(NEW))
    assert checkpoint_first["train"]["labels"] == [0, 1, 2]
    assert checkpoint_first["classes"] == ["contradiction", "entailment", "neutral"]
    assert (renamed["train"]["labels"], renamed["classes"]) == ([2, 0, 1], ["E", "N", "C"])
    expected = [
        f"data.validation_split: no split 'validation' in {MNLI}; use one of train, validation_matched",
        f"data.path={MNLI}, data.subset=mnli: cannot be loaded: ValueError: BuilderConfig 'mnli' not found. ",
        f"data.path={MNLI}: no revision 'v2' on the hub; set data.revision to an existing one",
        "data.path=nyu-mll/other: no such dataset on the hub; check the id, or set HF_TOKEN if private",
        "data.path=not an id: 'not an id' is not an id of the hub; ids look like owner/name",
        f"data.path={MNLI}: no column 'sentence1'; set data.premise to one of ['promptID', 'premise', 'hypothesis', ",
        "data.classes: the data's classes ['entailment', 'neutral', 'contradiction'] are not among the checkpoint's [",
    ]
    for error, start in zip(errors, expected, strict=True):
        assert error.startswith(start)

    requests = len(hub.requests)
    assert client("read_corpus(mnli())", f"read_corpus(mnli(revision={NEW!r}))") == [corpus(OLD), corpus(NEW)]
    assert len(hub.requests) == requests, "a commit in the cache needs no request"

    hub.stop()
    calls = ("read_corpus(mnli())", "read_corpus(mnli(revision='main'))", "read_corpus(mnli(revision='v2'))")
    for environment in ({"HF_HUB_OFFLINE": "1"}, {}):
        *cached, missing = client(*calls, **environment)
        assert cached == [corpus(OLD), corpus(NEW)]
        assert missing.startswith(f"data.path={MNLI} (v2): not in the local cache and the hub cannot be reached")


def test_identity() -> None:
    place = {"path": "owner/name", "revision": OLD, "train_split": "train", "validation_split": "validation"}
    columns = {"premise": "premise", "label": "label"}
    identity = identify(
        HubSettings(kind="hub", allow_change=False, subset=None, hypothesis=None, classes=None, **place, **columns)
    )
    assert identity["revision"] == OLD
    assert "allow_change" not in identity
