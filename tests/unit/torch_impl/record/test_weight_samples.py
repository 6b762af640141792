"""Tests of the samples that show whether a script changes weights between two updates."""

import torch

from torch_impl.record.weight_samples import WeightSamples


def test_only_changed_weights_are_listed() -> None:
    weights = {"finite": torch.ones(3), "nan": torch.tensor([1.0, torch.nan, torch.inf]), "index": torch.arange(3)}
    samples = WeightSamples()
    samples.take(weights)
    assert samples.list_changed({name: tensor.clone() for name, tensor in weights.items()}) == []
    changed = {name: tensor + 1 for name, tensor in weights.items()}
    assert samples.list_changed(changed) == ["finite", "nan", "index"]
