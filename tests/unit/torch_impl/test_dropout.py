"""Tests that aligned dropout has the masks of the reference, for padded and unpadded tokens, features and channels."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Dropout, Dropout2d, Linear, Sequential

from common.data.batches import GlobalBatch
from common.data.dropout import compute_normal_table, derive_example_keys, derive_site_key
from tests.conftest import MakeConfig
from tests.unit import reference_dropout
from tests.unit.reference_losses import CLASSIFICATION
from tests.unit.torch_impl.ready import make_ready
from torch_impl.aligned_layers import align_dropout, use_dropout_keys
from torch_impl.batches import to_tensors
from torch_impl.dropout import apply_mask, compute_mask, compute_normal, hash_rows, hash_token_rows
from torch_impl.models import build_model
from torch_impl.step import backward
from torch_impl.task import build_task_functions

TASK = build_task_functions(CLASSIFICATION)

KEYS = derive_example_keys(3, 7, np.array([5, 0, 2**33]))


def tensor(keys: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(keys)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 5, 70)])
def test_masks_are_those_of_the_reference(shape: tuple[int, ...], rate: float) -> None:
    rows = hash_rows(tensor(KEYS), torch.tensor(derive_site_key("a.dropout")), torch.Size(shape[:-1]))
    mask = compute_mask(rows, shape[-1], rate)
    for dtype in (torch.float64, torch.float32):
        expected = torch.from_numpy(reference_dropout.mask(KEYS, "a.dropout", shape, rate)).to(dtype)
        dropped = apply_mask(torch.ones(mask.shape, dtype=dtype), 1 / (1 - rate), mask)
        assert dropped.dtype == dtype and torch.equal(dropped, expected)


def test_unpadded_tokens_have_the_hashes_of_padded_ones() -> None:
    site, lengths = torch.tensor(derive_site_key("a")), (4, 1, 3)
    padded = hash_rows(tensor(KEYS), site, torch.Size([5]))
    examples = torch.tensor([index for index, length in enumerate(lengths) for _ in range(length)])
    positions = torch.cat([torch.arange(length) for length in lengths])
    assert torch.equal(hash_token_rows(tensor(KEYS), site, (examples, positions)), padded[examples, positions])


@pytest.mark.slow
def test_hashes_can_be_compiled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU computes the traced graph as one kernel; here its operations are computed one by one."""
    site, tokens = torch.tensor(derive_site_key("a")), (torch.tensor([0, 2]), torch.tensor([1, 3]))
    table = torch.from_numpy(compute_normal_table())

    def compute() -> list[torch.Tensor]:
        rows = [hash_rows(tensor(KEYS), site, torch.Size([4, 6])), hash_token_rows(tensor(KEYS), site, tokens)]
        return [*rows, compute_mask(rows[0], 5, 0.3), compute_normal(rows[1], 5, table)]

    expected, traced = compute(), []

    def compile_function(function: Callable[..., torch.Tensor], keys: torch.Tensor) -> Callable[..., torch.Tensor]:
        traced.append(function)
        return torch.compile(function, dynamic=True, fullgraph=True, backend="aot_eager")

    monkeypatch.setattr("torch_impl.dropout._fuse", compile_function)
    monkeypatch.setattr("torch_impl.dropout._is_compiled_for_cpu", lambda keys: False)
    assert all(map(torch.equal, compute(), expected)) and len(traced) == 4


def test_layers_drop_only_in_training() -> None:
    model = Sequential(Linear(4, 3), Dropout(0.5), Dropout2d(0.5), Dropout(0.0))
    align_dropout(model)
    assert [type(module).__name__ for module in model] == ["Linear", "AlignedLayer", "AlignedLayer", "Dropout"]
    assert "site_key" not in model.state_dict()
    use_dropout_keys(model, tensor(KEYS))
    x = torch.randn(3, 8, 2, 2, dtype=torch.float64)
    expected = reference_dropout.mask(KEYS, "1", (8, 2, 2), 0.5)
    assert torch.equal(model[1](x), x * torch.from_numpy(expected))
    channels = torch.from_numpy(reference_dropout.mask(KEYS, "2", (8,), 0.5))
    assert torch.equal(model[2](x), x * channels[..., None, None])
    model.eval()
    assert model[1](x) is x and model[2](x) is x
    use_dropout_keys(model.train(), None)
    with pytest.raises(AssertionError, match="use_dropout_keys"):
        model[1](x)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda keys: keys,
        lambda keys: keys.transpose(0, 1),
        lambda keys: keys.permute(2, 0, 1),
        lambda keys: keys[::2, :, 1:],
        lambda keys: keys[:, :1].transpose(0, 1),
        lambda keys: keys[0, 0, :1].expand(7),
    ],
)
def test_the_fakes_of_operations_have_their_strides(arrange: Callable[[torch.Tensor], torch.Tensor]) -> None:
    keys = arrange(torch.arange(24, dtype=torch.int64).view(4, 2, 3))
    operations = torch.ops.lockstep
    for operation, arguments in ((operations.keeps, (8, 5)), (operations.words, (8,)), (operations.hash, ())):
        real = operation(keys, *arguments)
        with FakeTensorMode() as mode:
            fake = operation(mode.from_tensor(keys), *arguments)
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
        long = [axis for axis, size in enumerate(real.shape) if size > 1]  # Inductor does not check the other strides
        assert [fake.stride(axis) for axis in long] == [real.stride(axis) for axis in long]


def test_bfloat16_elements_are_scaled_in_float32() -> None:
    x, rows = torch.full((3, 400), 3.0, dtype=torch.bfloat16), hash_rows(tensor(KEYS), torch.tensor(1), torch.Size())
    dropped = apply_mask(x, 1 / 0.9, compute_mask(rows, 400, 0.1))
    assert dropped.dtype == torch.bfloat16
    assert set(dropped.unique().tolist()) == {0.0, float(torch.tensor(3 / 0.9).bfloat16())}


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["unpadded", "micro_batches"])
def test_losses_and_gradients_do_not_depend_on_the_padding(small_config: MakeConfig, padding: str) -> None:
    context = make_ready(small_config("train.precision=float64", "model.dropout=0.3"))
    split, ids = context.inputs.cache.train, np.arange(11)
    results = {}
    for name, seed in (("global", 1), (padding, 1), ("other seed", 2)):
        model = build_model(context.config, context.inputs.initial).train()
        batch = GlobalBatch(1, ids, split, "global" if name == "other seed" else name, dropout_seed=seed)
        loss = backward(model, TASK, to_tensors(batch.shard(0, 1), torch.device("cpu")), len(ids), "float64")
        results[name] = [loss, *[parameter.grad for parameter in model.parameters()]]
    for expected, result in zip(results["global"], results[padding], strict=True):
        assert expected is not None and result is not None
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)
    first, other = results["global"][0], results["other seed"][0]
    assert first is not None and other is not None and abs(first - other) > 1e-6
