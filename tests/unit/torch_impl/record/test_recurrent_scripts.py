"""Tests of scripts of recurrent language models: states from batch to batch, and the time in the first axis."""

from pathlib import Path

import pytest
import torch
from torch import nn

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.recorded.walk import diagnose_records
from common.errors import UserError
from torch_impl.record import Recorder

WORDS, UNITS, EXAMPLES, TIME = 9, 6, 4, 5


class LanguageModel(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, UNITS)
        self.recurrent = nn.LSTM(UNITS, UNITS, batch_first=batch_first)
        self.head = nn.Linear(UNITS, WORDS)

    def forward(
        self, tokens: torch.Tensor, states: tuple[torch.Tensor, ...] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        hidden, states = self.recurrent(self.embedding(tokens), states)
        return self.head(hidden.flatten(0, 1)), states


class KeepingModel(LanguageModel):
    """A language model that keeps its states itself, as a stateful layer of Keras does."""

    kept: tuple[torch.Tensor, ...] = (torch.zeros(1, EXAMPLES, UNITS),) * 2

    def forward(
        self, tokens: torch.Tensor, states: tuple[torch.Tensor, ...] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        outputs, states = super().forward(tokens, self.kept)
        self.kept = tuple(state.detach() for state in states)
        return outputs, ()


def train(
    directory: Path,
    follow: Path | None,
    batch_first: bool = True,
    carries: bool | None = True,
    factor: float = 1.0,
    resets: int = 0,
) -> None:
    """Train a language model for three steps of Adam.

    Args:
        directory: The directory of the record.
        follow: The directory of the record that the script follows.
        batch_first: Whether the examples are in the first axis.
        carries: Whether the script passes the states on; None if the model keeps them itself.
        factor: The factor of the loss after the first step.
        resets: The number of examples whose states the script sets to zero.
    """
    torch.manual_seed(0 if follow is None else 1)
    model = KeepingModel(batch_first) if carries is None else LanguageModel(batch_first)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
    texts = [torch.randint(WORDS, (EXAMPLES, TIME + 1)) for _ in range(3)]
    pairs = [(text[:, :-1], text[:, 1:]) for text in texts]
    batches = [(x, y.flatten()) if batch_first else (x.t(), y.t().flatten()) for x, y in pairs]
    states: tuple[torch.Tensor, ...] = (torch.zeros(1, EXAMPLES, UNITS),) * 2
    for step, (tokens, labels) in enumerate(batches if follow is None else recorder.batches(batches)):
        outputs, returned = model(tokens) if carries is None else model(tokens, states)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(outputs, labels) * (factor if step else 1.0)).backward()
        optimizer.step()
        states = tuple(state.detach() for state in returned) if carries else states
        for state in states if resets else ():
            state[:, :resets] = 0.0


def diagnose(tmp_path: Path, batch_first: bool, carries: bool | None = True, factor: float = 1.0) -> Diagnosis:
    train(tmp_path / "a", None)
    train(tmp_path / "b", tmp_path / "a", batch_first, carries, factor)
    return diagnose_records(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("batch_first", [True, False])
def test_batches_with_the_time_first_follow_those_with_the_examples_first(batch_first: bool, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, batch_first)
    assert diagnosis.has_equal_stages, [cause.sentence for cause in diagnosis.causes]
    assert {stage.name: len(stage.checks) for stage in diagnosis.stages}["activations"] > 2


def test_states_that_are_not_passed_on_are_named(tmp_path: Path) -> None:
    causes = diagnose(tmp_path, batch_first=True, carries=False).causes
    assert [(cause.cause, cause.side, cause.confirmed) for cause in causes] == [("state_not_carried", "b", True)]


@pytest.mark.parametrize(("resets", "sides"), [((2, 2), []), ((0, 2), ["a"]), ((2, 0), ["b"])])
def test_states_of_some_examples_that_only_one_script_sets_to_zero_are_named(
    resets: tuple[int, int], sides: list[str], tmp_path: Path
) -> None:
    train(tmp_path / "a", None, resets=resets[0])
    train(tmp_path / "b", tmp_path / "a", resets=resets[1])
    causes = diagnose_records(tmp_path / "a", tmp_path / "b").causes
    assert [(cause.cause, cause.side, cause.confirmed) for cause in causes] == [
        ("state_not_reset", side, True) for side in sides
    ]


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_states_that_a_model_keeps_itself_are_no_cause(factor: float, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, batch_first=True, carries=None, factor=factor)
    assert [cause.sentence for cause in diagnosis.causes] == []
    assert diagnosis.has_equal_stages == (factor == 1.0)


@pytest.mark.parametrize(("keeps", "expected"), [(True, [("state_not_carried", "a", True)]), (False, [])])
def test_a_state_that_only_one_model_keeps_is_named(
    keeps: bool, expected: list[tuple[str, str, bool]], tmp_path: Path
) -> None:
    for directory, is_kept in ((tmp_path / "a", False), (tmp_path / "b", keeps)):
        torch.manual_seed(0)
        model = KeepingModel(batch_first=True) if is_kept else LanguageModel(batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        Recorder(str(directory), model, optimizer)
        for _ in range(3):
            tokens = torch.randint(WORDS, (EXAMPLES, TIME))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens)[0], tokens.flatten()).backward()
            optimizer.step()
    diagnosis = diagnose_records(tmp_path / "a", tmp_path / "b")
    assert [(cause.cause, cause.side, cause.confirmed) for cause in diagnosis.causes] == expected


class BeginningModel(LanguageModel):
    """A model whose recurrent layer begins with ones."""

    def forward(
        self, tokens: torch.Tensor, states: tuple[torch.Tensor, ...] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        return super().forward(tokens, (torch.ones(1, EXAMPLES, UNITS),) * 2)


def test_a_state_that_only_one_script_passes_to_a_recurrent_layer_is_named(tmp_path: Path) -> None:
    for directory, kind in ((tmp_path / "a", LanguageModel), (tmp_path / "b", BeginningModel)):
        torch.manual_seed(0)
        model = kind(batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        Recorder(str(directory), model, optimizer, steps=1)
        tokens = torch.randint(WORDS, (EXAMPLES, TIME))
        nn.functional.cross_entropy(model(tokens)[0], tokens.flatten()).backward()
        optimizer.step()
    (cause,) = diagnose_records(tmp_path / "a", tmp_path / "b").causes
    assert (cause.cause, cause.confirmed) == ("recurrent_layer", True)
    assert "only B's layer begins with a state that its script passes, in test_recurrent_scripts.py:" in cause.sentence


class ExchangingModel(LanguageModel):
    """A model that takes the examples first, and exchanges the axes for its recurrent layer."""

    def forward(
        self, tokens: torch.Tensor, states: tuple[torch.Tensor, ...] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        hidden, states = self.recurrent(self.embedding(tokens).transpose(0, 1))
        return self.head(hidden.transpose(0, 1).flatten(0, 1)), states


def test_a_batch_with_as_many_examples_as_recorded_time_steps_is_refused_if_the_model_exchanges_the_axes(
    tmp_path: Path,
) -> None:
    train(tmp_path / "a", None)
    model = ExchangingModel(batch_first=False)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    recorder = Recorder(str(tmp_path / "b"), model, optimizer, follow=str(tmp_path / "a"))
    tokens = torch.zeros(TIME, EXAMPLES, dtype=torch.long)  # examples and time steps
    with pytest.raises(UserError, match=f"number of examples is not {TIME}"):
        for batch, _ in recorder.batches([(tokens, tokens.flatten())]):
            model(batch)
    recorder.close()
