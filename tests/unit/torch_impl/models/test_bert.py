"""Tests that BERT without padding computes what Hugging Face's forward pass computes from padded batches."""

import numpy as np
import pytest
import torch

from common.data.batches import GlobalBatch
from tests.conftest import MakeConfig
from tests.unit.reference_losses import CLASSIFICATION
from tests.unit.torch_impl.ready import make_ready
from torch_impl.batches import to_tensors
from torch_impl.models import build_model
from torch_impl.step import backward, compute_evaluation_sums
from torch_impl.task import build_task_functions

pytestmark = pytest.mark.slow

TASK = build_task_functions(CLASSIFICATION)

CPU = torch.device("cpu")


@pytest.mark.parametrize("padding", ["unpadded", "micro_batches"])
def test_losses_and_gradients_are_those_of_a_padded_batch(small_config: MakeConfig, padding: str) -> None:
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
