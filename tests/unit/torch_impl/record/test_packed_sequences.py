"""Tests of models that pack sequences, with the time first or the examples: source and target differ in length."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from common.diagnose.recorded.walk import diagnose_records
from torch_impl.record import Recorder

WORDS, UNITS, EXAMPLES = 11, 6, 4
SIZES = ((9, 6), (8, 3), (EXAMPLES, 11))  # lengths of source and target in each step


class Translator(nn.Module):
    """An encoder of packed sequences and a decoder."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Embedding(WORDS, UNITS)
        self.encoder = nn.GRU(UNITS, UNITS, batch_first=batch_first)
        self.decoder = nn.GRU(UNITS, UNITS, batch_first=batch_first)
        self.head = nn.Linear(UNITS, WORDS)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embedding(source), lengths, self.batch_first)
        _, states = self.encoder(packed)
        hidden, _ = self.decoder(self.embedding(target), states)
        return self.head(hidden)


def train(directory: Path, follow: Path | None, batch_first: bool) -> list[float]:
    torch.manual_seed(0 if follow is None else 1)
    model = Translator(batch_first)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))
    batches, losses = [], []
    for times in SIZES if follow is None else SIZES[1:] + SIZES[:1]:
        source, target = (torch.randint(1, WORDS, (EXAMPLES, time)) for time in times)
        lengths = torch.randint(2, times[0] + 1, (EXAMPLES,)).sort(descending=True).values
        lengths[0] = times[0]
        batches.append((source, lengths, target) if batch_first else (source.t(), lengths, target.t()))
    for source, lengths, target in batches if follow is None else recorder.batches(batches):
        outputs = model(source, lengths, target)
        outputs, labels = (outputs[:, :-1], target[:, 1:]) if batch_first else (outputs[:-1], target[1:])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(outputs.reshape(-1, WORDS), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_script_with_packed_sequences_follows_one_with_the_examples_in_another_axis(
    batch_first: bool, tmp_path: Path
) -> None:
    losses = train(tmp_path / "old", None, batch_first)
    assert train(tmp_path / "new", tmp_path / "old", not batch_first) == pytest.approx(losses, rel=1e-5)
    diagnosis = diagnose_records(tmp_path / "old", tmp_path / "new")
    assert diagnosis.is_equal, [cause.sentence for stage in diagnosis.stages for cause in stage.causes]
