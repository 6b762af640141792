"""Mistakes in PyTorch scripts: the diagnosis of the records of a good script and of one with the mistake names it.

The scripts run in the process of the tests, and those with two ranks in two processes that start once.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.recorded.walk import diagnose_records
from tests.edited_scripts import edit_script, run_script
from tests.torch_mistakes.good_scripts import Edits, Mistake
from tests.torch_mistakes.losses_and_models import EVALUATED_AVERAGE, MODEL_MISTAKES
from tests.torch_mistakes.pairs import CLEAN_PAIRS, TWO_RANK_MISTAKES
from tests.torch_mistakes.updates import UPDATE_MISTAKES
from tests.two_ranks import run_on_two_ranks

pytestmark = pytest.mark.slow
MISTAKES = {**UPDATE_MISTAKES, **MODEL_MISTAKES}


class Recordings:
    """Records of edited scripts. A script with the same edits is recorded once."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.monkeypatch = directory, monkeypatch
        self.records: dict[str, Path] = {}

    def record(self, script: str, edits: Edits, arguments: str) -> Path:
        """Return the directory of the record of an edited script."""
        key = repr((script, dict(edits), arguments))
        if key not in self.records:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
            directory = self.directory / str(len(self.records))
            path = edit_script(script, edits, directory)
            run_script(path, [*arguments.split(), "--record", str(directory / "record")], self.monkeypatch)
            self.records[key] = directory / "record"
        return self.records[key]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recordings]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Recordings(tmp_path_factory.mktemp("records"), monkeypatch)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def records_of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the records of the scripts with two ranks, by the name of the mistake."""
    directory = tmp_path_factory.mktemp("ranks")
    paths = {
        name: edit_script(mistake.script, mistake.edits, directory / str(index))
        for index, (name, mistake) in enumerate(TWO_RANK_MISTAKES.items())
    }
    commands = [(path, ["--record", str(path.parent / "record")]) for path in paths.values()]
    run_on_two_ranks(commands, directory / "store")
    return {name: path.parent / "record" for name, path in paths.items()}


def check_causes(diagnosis: Diagnosis, mistake: Mistake) -> None:
    shown = [(cause.stage, cause.cause, cause.sentence) for cause in diagnosis.causes]
    assert [(cause.stage, cause.cause) for cause in diagnosis.causes[:1]] == [(mistake.stage, mistake.cause)], shown
    assert {cause.cause for cause in diagnosis.causes} <= {mistake.cause, *mistake.consequences}, shown
    assert not diagnosis.is_equal


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, recordings: Recordings) -> None:
    mistake = MISTAKES[name]
    good = recordings.record(mistake.script, mistake.good, mistake.arguments)
    bad = recordings.record(mistake.script, {**mistake.good, **mistake.edits}, mistake.arguments)
    check_causes(diagnose_records(good, bad), mistake)


@pytest.mark.parametrize("name", TWO_RANK_MISTAKES)
def test_mistakes_with_two_ranks(name: str, recordings: Recordings, records_of_two_ranks: dict[str, Path]) -> None:
    mistake = TWO_RANK_MISTAKES[name]
    good = recordings.record(mistake.script, mistake.good, mistake.arguments)
    check_causes(diagnose_records(good, records_of_two_ranks[name]), mistake)


@pytest.mark.parametrize("name", CLEAN_PAIRS)
def test_clean_pairs(name: str, recordings: Recordings) -> None:
    a, b = CLEAN_PAIRS[name]
    diagnosis = diagnose_records(recordings.record(*a), recordings.record(*b))
    assert [(cause.cause, cause.sentence) for cause in diagnosis.causes] == []
    assert diagnosis.is_equal, diagnosis.headline


def test_an_evaluation_is_not_compared(recordings: Recordings) -> None:
    mistake = EVALUATED_AVERAGE
    good = recordings.record(mistake.script, mistake.good, "")
    diagnosis = diagnose_records(good, recordings.record(mistake.script, {**mistake.good, **mistake.edits}, ""))
    assert diagnosis.is_equal, diagnosis.headline
    assert any("evaluation is not recorded" in note and "EMA" in note for note in diagnosis.notes)
