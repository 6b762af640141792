"""Tests that BERT without padding computes what Hugging Face's forward pass computes from padded batches."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from common.data.batches import GlobalBatch
from common.data.bucketing import pad_to_bucket
from tests.conftest import MakeConfig
from tests.unit.reference_losses import CLASSIFICATION
from tests.unit.torch_impl.ready import make_ready
from torch_impl.batches import to_tensors
from torch_impl.models import bert, build_model
from torch_impl.step import backward, compute_evaluation_sums
from torch_impl.task import build_task_functions

pytestmark = pytest.mark.slow

TASK = build_task_functions(CLASSIFICATION)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("padding", "smallest_saving"), [("unpadded", bert.SMALLEST_SAVING), ("unpadded", 1), ("micro_batches", 1)]
)
def test_losses_and_gradients_are_those_of_a_padded_batch(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, padding: str, smallest_saving: int
) -> None:
    monkeypatch.setattr(bert, "SMALLEST_SAVING", smallest_saving)
    context = make_ready(small_config("train.precision=float64"))
    split, ids = context.inputs.cache.train, np.arange(11)
    assert len(set(split.lengths(ids).tolist())) > 2
    results = {}
    for name in ("global", padding):
        model = build_model(context.config, context.inputs.initial).eval()
        shard = to_tensors(GlobalBatch(1, ids, split, name).shard(0, 1), CPU)
        assert ("places" in shard[0]) == (name == "unpadded")
        loss = backward(model, TASK, shard, len(ids), "float64")
        sums = compute_evaluation_sums(model, TASK, shard, "float64")
        results[name] = [loss, sums, *[parameter.grad for parameter in model.parameters()]]
    for expected, result in zip(results["global"], results[padding], strict=True):
        assert expected is not None and result is not None
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)
    assert len(results["global"]) > 20


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sampled_from([1, bert.SMALLEST_SAVING]))
def test_groups_of_rows_have_all_tokens(lengths: list[int], smallest_saving: int) -> None:
    width = max(lengths)
    places = torch.cat([row * width + torch.arange(length) for row, length in enumerate(lengths)])
    bias = torch.full([len(lengths) * width], -1.0).index_fill_(0, places, 0.0).reshape(-1, 1, 1, width)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(bert, "SMALLEST_SAVING", smallest_saving)
        biases, group_places = bert._group_rows(bias, places, heads=2)
    assert sum(map(len, biases)) == len(lengths)
    flat = torch.cat([group.flatten() for group in biases])
    assert group_places.tolist() == (flat == 0).nonzero().flatten().tolist()  # in order: no token has changed its row
    scores = sum(len(group) * group.shape[-1] ** 2 for group in biases)
    is_divided = smallest_saving == 1 and scores < len(lengths) * width**2
    assert (len(biases) > 1) == is_divided


def attend_each_example(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_bounds: torch.Tensor,
    key_bounds: torch.Tensor,
    longest_query: int,
    longest_key: int,
) -> torch.Tensor:
    """Compute what `torch.nn.attention.varlen.varlen_attn` documents, [t, heads, size], on any device."""
    assert query_bounds.dtype == torch.int32 and torch.equal(query_bounds, key_bounds)
    lengths = query_bounds.diff().tolist()
    assert max(lengths) <= longest_query == longest_key and sum(lengths) == len(query)
    parts = zip(*(x.transpose(0, 1).split(lengths, 1) for x in (query, key, value)), strict=True)
    outputs = [scaled_dot_product_attention(*part) for part in parts]
    return torch.cat(outputs, 1).transpose(0, 1)


@pytest.mark.parametrize("is_bucketed", [False, True])
def test_attention_of_variable_length(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, is_bucketed: bool
) -> None:
    context = make_ready(small_config("train.precision=float64"))
    arrays = GlobalBatch(1, np.arange(11), context.inputs.cache.train, "unpadded").shard(0, 1)
    shard = to_tensors([pad_to_bucket(micro_batch) for micro_batch in arrays] if is_bucketed else arrays, CPU)
    results = []
    for is_available in (False, True):
        monkeypatch.setattr(bert, "_is_flash_available", lambda query, is_available=is_available: is_available)
        monkeypatch.setattr(bert, "varlen_attn", attend_each_example)
        model = build_model(context.config, context.inputs.initial).train()
        loss = backward(model, TASK, shard, 11, "float64")
        results.append([loss, *[parameter.grad for parameter in model.parameters()]])
    for expected, result in zip(*results, strict=True):
        assert expected is not None and result is not None
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("dtype", "size", "capability", "is_available"),
    [
        (torch.bfloat16, 64, (9, 0), True),
        (torch.float32, 64, (9, 0), False),
        (torch.bfloat16, 12, (9, 0), False),
        (torch.bfloat16, 64, (7, 5), False),
    ],
)
def test_where_attention_has_variable_length(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, size: int, capability: tuple[int, int], is_available: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    query = SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=(1, 2, 5, size))
    assert bert._is_flash_available(cast(torch.Tensor, query)) is is_available
    assert not bert._is_flash_available(torch.zeros(1, 2, 5, size, dtype=dtype))


def test_linear_layers_multiply_in_bfloat16(small_config: MakeConfig) -> None:
    results = []
    for override in ("train.matmul_precision=null", "train.matmul_precision=bfloat16"):
        context = make_ready(small_config(override))
        model = build_model(context.config, context.inputs.initial).eval()
        shard = to_tensors(GlobalBatch(1, np.arange(11), context.inputs.cache.train, "unpadded").shard(0, 1), CPU)
        loss = backward(model, TASK, shard, 11, "float32")
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert {gradient.dtype for gradient in gradients} == {torch.float32}
        results.append((loss, torch.cat([gradient.flatten() for gradient in gradients])))
    (loss, gradient), (rounded_loss, rounded) = results
    assert 0 < abs(loss - rounded_loss) < 1e-3
    assert 1e-4 < torch.linalg.vector_norm(rounded - gradient) / torch.linalg.vector_norm(gradient) < 2e-2


def test_the_padding_token_is_trained_if_a_text_contains_it(small_config: MakeConfig) -> None:
    context = make_ready(small_config())
    model = build_model(context.config, context.inputs.initial).train()
    ids = torch.zeros(1, 3, dtype=torch.int64)
    model(input_ids=ids, token_type_ids=ids, attention_mask=torch.ones_like(ids)).sum().backward()
    gradient = model.get_parameter("bert.embeddings.word_embeddings.weight").grad
    assert gradient is not None and gradient[0].any()
