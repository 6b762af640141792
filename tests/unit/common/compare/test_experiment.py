from dataclasses import make_dataclass
from typing import Any

import pytest

from common.compare.experiment import explain_divergence, find_config_differences, find_curve_differences
from common.compare.pair import RunPair, Tolerance, compare_pair
from common.compare.runs import Run, load_run
from common.config.keys import CURVE, HOST, RUN, SOURCE, Scope, key
from common.config.models import RandomBertSettings
from common.config.schema import GROUPS, collect_keys
from tests.unit.common.compare.conftest import CHANGED, MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}


@pytest.fixture
def runs(make_run: MakeRun) -> tuple[Run, Run]:
    """Two equal runs; tests change the config of the second one."""
    return load_run(make_run("a")), load_run(make_run("b"))


def pair_of(runs: tuple[Run, Run]) -> RunPair:
    return compare_pair(*runs, TOLERANCES)


@pytest.mark.parametrize(
    ("scope", "verdict"), [(CURVE, "not comparable"), (SOURCE, "lockstep"), (RUN, "lockstep"), (HOST, "lockstep")]
)
def test_a_new_key_is_treated_by_its_scope(
    runs: tuple[Run, Run], monkeypatch: pytest.MonkeyPatch, scope: Scope, verdict: str
) -> None:
    extended = make_dataclass("Extended", [("variety", str, key(scope))], bases=(RandomBertSettings,), frozen=True)
    monkeypatch.setitem(GROUPS, "model", {**GROUPS["model"], "extended": extended})
    for run, value in zip(runs, ("plain", "fancy"), strict=True):
        run.config["model.variety"] = value
    pair = pair_of(runs)
    assert pair.verdict == verdict
    assert list(pair.config_differences) == (["model.variety"] if verdict == "not comparable" else [])


def test_every_key_is_treated_by_its_scope(runs: tuple[Run, Run]) -> None:
    a, b = runs
    a.config |= dict.fromkeys(collect_keys(), "one")
    b.config |= dict.fromkeys(collect_keys(), "other")
    assert set(find_config_differences(a, b)) == set(collect_keys())
    curve = {name for name, config_key in collect_keys().items() if config_key.scope is CURVE}
    assert set(find_curve_differences(a, b)) == curve


@pytest.mark.parametrize("name", ["optimizer.nesterov", "strategy.nesterov", "nesterov"])
def test_an_unknown_key_counts(runs: tuple[Run, Run], name: str) -> None:
    runs[1].config[name] = True
    assert pair_of(runs).reasons == [f"different configs: {name} ((absent) | True)"]


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("data.seed", "token_cache"),
        ("data.kind", "token_cache"),
        ("model.name", "initial_weights"),
        ("model.checkpoint", "initial_weights"),
    ],
)
def test_a_source_counts_if_the_content_is_unknown_or_differs(
    runs: tuple[Run, Run], name: str, fingerprint: str
) -> None:
    runs[1].config[name] = "other"
    assert pair_of(runs).verdict == "lockstep"
    runs[1].summary["fingerprints"][fingerprint] = "other"
    assert list(pair_of(runs).config_differences) == [name]
    for run in runs:
        del run.summary["fingerprints"][fingerprint]
    assert list(pair_of(runs).config_differences) == [name]


@pytest.mark.parametrize("name", ["train.steps", "train.epochs"])
@pytest.mark.parametrize(
    ("schedule", "total_steps", "counts"),
    [("linear", None, True), ("linear", 100, False), ("constant", None, False)],
)
def test_the_length_counts_if_the_schedule_depends_on_it(
    runs: tuple[Run, Run], name: str, schedule: str, total_steps: int | None, counts: bool
) -> None:
    for run in runs:
        run.config |= {"schedule.kind": schedule, "schedule.total_steps": total_steps}
    runs[1].config[name] = 7
    assert bool(pair_of(runs).config_differences) is counts


@pytest.mark.parametrize(("schedule", "counts"), [("cosine", True), ("constant", False)])
def test_a_constant_schedule_has_no_total(runs: tuple[Run, Run], schedule: str, counts: bool) -> None:
    for run, total_steps in zip(runs, (100, 200), strict=True):
        run.config |= {"schedule.kind": schedule, "schedule.total_steps": total_steps}
    assert bool(pair_of(runs).config_differences) is counts


@pytest.mark.parametrize(
    ("dropout", "semantics", "noted"), [(0.1, "native", True), (0.1, "aligned", False), (0.0, "native", False)]
)
def test_native_dropout_explains_a_difference(make_run: MakeRun, dropout: float, semantics: str, noted: bool) -> None:
    keys = (f"model.dropout={dropout}", f"model.dropout_semantics={semantics}")
    a, b = (load_run(make_run(name, *keys, replicas=int(name))) for name in ("1", "2"))
    notes = [note for note in explain_divergence(a, b) if "dropout" in note]
    assert bool(notes) == noted


@pytest.mark.parametrize(
    ("a", "b", "noted"),
    [
        ({"replicas": 2, "batch_norm": "replica"}, {"replicas": 4, "batch_norm": "replica"}, True),
        ({"replicas": 4, "batch_norm": "replica", "replicas_changed": CHANGED}, {"batch_norm": "replica"}, True),
        ({"replicas": 2, "batch_norm": "replica"}, {"replicas": 2, "batch_norm": "replica"}, False),
        ({"replicas": 2, "batch_norm": "global"}, {"replicas": 4, "batch_norm": "global"}, False),
        ({"replicas": 2}, {"replicas": 4}, False),
    ],
)
def test_batch_norm_of_each_replica_explains_a_difference(
    make_run: MakeRun, a: dict[str, Any], b: dict[str, Any], noted: bool
) -> None:
    notes = explain_divergence(load_run(make_run("a", **a)), load_run(make_run("b", **b)))
    assert bool([note for note in notes if "model.sync_batch_norm=true" in note]) == noted


@pytest.mark.parametrize(
    ("choice", "replicas", "noted"), [("average", 2, True), ("average", 1, False), ("equal", 2, False)]
)
def test_averaged_buffers_explain_a_difference(make_run: MakeRun, choice: str, replicas: int, noted: bool) -> None:
    runs = [load_run(make_run(name, replicas=count)) for name, count in (("a", 1), ("b", replicas))]
    for run in runs:
        run.config["model.buffers"] = choice
    assert bool([note for note in explain_divergence(*runs) if "model.buffers=average" in note]) == noted
