"""Tests of the operations of which an attention of PyTorch consists."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.torch_impl.record.scripts import train
from tests.unit.torch_impl.record.test_operation_tracer import find, read_operations
from torch_impl.record import attention_parts
from torch_impl.record.attention_parts import list_attention_parts

STREAM = np.random.default_rng(5)
PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3, [False] * 7])
MASK = torch.arange(5)[:, None] < torch.arange(7)
ADDED = torch.from_numpy(STREAM.normal(size=(6, 5, 7)).astype("f"))
MASKS: list[tuple[dict[str, torch.Tensor], str]] = [
    ({}, ""),
    ({"key_padding_mask": PADDING}, "masked_fill"),
    ({"key_padding_mask": PADDING, "attn_mask": MASK}, "masked_fill"),
    ({"attn_mask": ADDED[0]}, "add"),
    ({"attn_mask": ADDED, "key_padding_mask": torch.zeros(3, 7).masked_fill(PADDING, -torch.inf)}, "add"),
]


def draw_tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw the query, the key and the value of an attention."""
    query, key, value = torch.randn(3, 2, 2, 5, 4, generator=torch.Generator().manual_seed(1)).unbind()
    return query, key, value


class Attention(nn.Module):
    """Attends by a function of PyTorch, and then by a module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(20, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.head(x + self.attention(x, x, x)[0])


@pytest.mark.parametrize(("masks", "name"), MASKS, ids=lambda value: "+".join(value) if isinstance(value, dict) else "")
@pytest.mark.parametrize(
    ("is_batch_first", "size", "has_bias"), [*itertools.product([True, False], [8, 6], [True, False])]
)
def test_parts_of_a_module_compute_its_result(
    masks: dict[str, torch.Tensor], name: str, is_batch_first: bool, size: int, has_bias: bool
) -> None:
    torch.manual_seed(1)
    module = nn.MultiheadAttention(8, 2, bias=has_bias, kdim=size, vdim=size, batch_first=is_batch_first)
    query, key = torch.randn(3, 5, 8), torch.randn(3, 7, size)
    if not is_batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    returned = module(query, key, key, **masks)
    parts = list_attention_parts(module, (query, key, key), masks, returned)
    scores = ["matmul", "mul", *([name] if name else []), "softmax", "matmul"]
    assert [part.name for part in parts] == ["linear", "reshape"] * 3 + scores + ["reshape", "linear"]
    assert parts[-1].output is returned[0]
    weights = next(part.output for part in parts if part.name == "softmax")
    torch.testing.assert_close(weights.mean(1), returned[1].detach())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, "matmul mul softmax matmul"),
        ({"is_causal": True}, "matmul mul masked_fill softmax matmul"),
        ({"attn_mask": ~MASK[:, :5]}, "matmul mul masked_fill softmax matmul"),
        ({"attn_mask": ADDED[0, :, :5], "scale": 0.1}, "matmul mul add softmax matmul"),
        ({"dropout_p": 0.5}, ""),
    ],
)
def test_parts_of_the_function_compute_its_result(options: dict[str, Any], names: str) -> None:
    tensors = draw_tensors()
    function = functional.scaled_dot_product_attention
    result = function(*tensors, **options)
    parts = list_attention_parts(function, tensors, options, result)
    assert " ".join(part.name for part in parts) == names
    assert not parts or parts[-1].output is result


def test_parts_with_another_result_are_dropped() -> None:
    """A later version of PyTorch may give a mask another meaning."""
    tensors = draw_tensors()
    result = functional.scaled_dot_product_attention(*tensors, is_causal=True)
    assert list_attention_parts(functional.scaled_dot_product_attention, tensors, {}, result) == []


def test_many_scores_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = draw_tensors()
    function, module = functional.scaled_dot_product_attention, nn.MultiheadAttention(4, 2, batch_first=True)
    calls: list[tuple[Any, tuple[torch.Tensor, ...]]] = [
        (function, (query, key, value)),
        (module, (query[:, 0], key[:, 0], value[:, 0])),
    ]
    for attention, tensors in calls:
        returned = attention(*tensors)
        for limit, has_parts in ((2 * 2 * 5 * 5, True), (2 * 2 * 5 * 5 - 1, False)):
            monkeypatch.setattr(attention_parts, "MOST_SCORES", limit)
            assert bool(list_attention_parts(attention, tensors, {}, returned)) == has_parts


def test_attentions_of_a_script_have_parts(tmp_path: Path) -> None:
    assert train(tmp_path / "record", build_model=Attention)[0] == train(None, build_model=Attention)[0]
    trace = read_operations(tmp_path / "record")
    assert trace["complete"]
    for name, count in (("scaled_dot_product_attention", 5), ("MultiheadAttention", 12)):
        operation = find(trace, name)
        assert len(operation["parts"]) == count
        assert operation["parts"][-1]["outputs"] == operation["outputs"][:1]
        assert {x for part in operation["parts"] for x in part["inputs"]} & {*operation["inputs"]}
    assert "softmax" not in [operation["name"] for operation in trace["operations"]]
