"""Tests that attention with aligned dropout multiplies PyTorch's probabilities by the reference's masks."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Linear, MultiheadAttention, Sequential, TransformerDecoderLayer, TransformerEncoderLayer
from torch.nn.functional import linear

from common.data.dropout import derive_example_keys
from common.errors import UserError
from common.map.noise import Noise
from tests.unit import reference_dropout
from torch_impl.aligned_layers import align_dropout, use_dropout_keys
from torch_impl.attention import AlignedAttention, UnfoldedAttention, unfold_attention
from torch_impl.described_dropout import disable_dropout, find_dropouts

IDS = derive_example_keys(3, 7, np.array([5, 0, 2**33]))
KEYS = torch.from_numpy(IDS)
N, HEADS, QUERIES, TOKENS, WIDTH = 3, 2, 5, 7, 8
SIZES = {"self": None, "cross": (WIDTH, WIDTH), "other sizes": (6, 4)}  # numbers of features of key and value
MASKS = ("none", "padding", "queries", "heads", "added")


def attention(kdim: int | None = None, vdim: int | None = None, **settings: object) -> MultiheadAttention:
    torch.manual_seed(0)
    module = MultiheadAttention(WIDTH, HEADS, 0.3, kdim=kdim, vdim=vdim, dtype=torch.float64, **settings)
    if module.in_proj_bias is not None:
        torch.nn.init.normal_(module.in_proj_bias)
    return module


def draw_inputs(sizes: tuple[int, int] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value [n, tokens, features]. `sizes` are for key and value; None means self-attention."""
    stream = torch.Generator().manual_seed(1)
    query = torch.randn(N, TOKENS if sizes is None else QUERIES, WIDTH, dtype=torch.float64, generator=stream)
    if sizes is None:
        return query, query, query
    key, value = (torch.randn(N, TOKENS, size, dtype=torch.float64, generator=stream) for size in sizes)
    return query, key, value


def make_masks(kind: str, queries: int) -> dict[str, Tensor]:
    """Return the arguments of a mask that leaves at least one key for every query."""
    stream = torch.Generator().manual_seed(2)
    shape = {"queries": (queries, TOKENS), "heads": (N * HEADS, queries, TOKENS), "added": (queries, TOKENS)}
    if kind == "none":
        return {}
    if kind == "added":
        return {"attn_mask": torch.randn(shape[kind], dtype=torch.float64, generator=stream)}
    hidden = torch.rand(shape.get(kind, (N, TOKENS)), generator=stream) < 0.4
    hidden[..., 0] = False
    return {"key_padding_mask" if kind == "padding" else "attn_mask": hidden}


def project_values(module: MultiheadAttention, value: Tensor) -> Tensor:
    """Return the values [n, heads, keys, size]."""
    weight = module.in_proj_weight[-WIDTH:] if module.v_proj_weight is None else module.v_proj_weight
    bias = None if module.in_proj_bias is None else module.in_proj_bias[-WIDTH:]
    return linear(value, weight, bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES)
def test_probabilities_are_multiplied_by_the_references_mask(sizes: str, mask: str) -> None:
    for batch_first, need_weights, average, bias in product((True, False), repeat=4):
        features = SIZES[sizes] or (None, None)
        module = attention(*features, batch_first=batch_first, bias=bias).train()
        inputs = draw_inputs(SIZES[sizes])
        hidden = make_masks(mask, inputs[0].shape[1])
        arranged = inputs if batch_first else [x.transpose(0, 1) for x in inputs]
        module.dropout = 0.0
        probabilities = module(*arranged, **hidden, average_attn_weights=False)[1]  # the probabilities of PyTorch
        module.dropout = 0.3
        dropped = probabilities * torch.from_numpy(
            reference_dropout.mask(IDS, "0.attention_dropout", probabilities.shape[1:], 0.3)
        )
        expected = module.out_proj((dropped @ project_values(module, inputs[2])).transpose(1, 2).flatten(2))

        model = Sequential(module)
        align_dropout(model)
        use_dropout_keys(model, KEYS)
        output, weights = module(*arranged, **hidden, need_weights=need_weights, average_attn_weights=average)
        torch.testing.assert_close(output if batch_first else output.transpose(0, 1), expected, rtol=0, atol=1e-14)
        if need_weights:
            torch.testing.assert_close(weights, dropped.mean(1) if average else dropped, rtol=0, atol=1e-15)
        else:
            assert weights is None


def test_evaluation_uses_pytorchs_own_computation() -> None:
    x = draw_inputs(None)[0]
    for need_weights in (True, False):
        module = attention(batch_first=True).eval()
        with torch.no_grad():  # PyTorch takes its fast path
            expected = module(x, x, x, need_weights=need_weights)
            align_dropout(module)
            output, weights = module(x, x, x, need_weights=need_weights)
        assert torch.equal(output, expected[0])
        assert weights is expected[1] is None or torch.equal(weights, expected[1])
    assert isinstance(module, AlignedAttention) and not module.attention_dropout.training


def test_attention_without_dropout_is_not_replaced() -> None:
    module = MultiheadAttention(WIDTH, HEADS)
    align_dropout(module)
    assert type(module) is MultiheadAttention


def test_causal_hint_changes_nothing() -> None:
    x = draw_inputs(None)[0]
    module = attention(batch_first=True)
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    align_dropout(module)
    use_dropout_keys(module, KEYS)
    hinted = module(x, x, x, attn_mask=causal, need_weights=False, is_causal=True)[0]
    use_dropout_keys(module, KEYS)
    assert torch.equal(hinted, module(x, x, x, attn_mask=causal)[0])


def test_query_without_keys_gets_the_zeros_of_pytorchs_fused_attention() -> None:
    """A row of padding has no keys. Its gradients are finite."""
    x = draw_inputs(None)[0].requires_grad_()
    hidden = torch.zeros(N, TOKENS, dtype=torch.bool)
    hidden[1] = True
    module = attention(batch_first=True)
    module.dropout = 0.0
    expected = module(x, x, x, hidden, need_weights=False)[0]
    module.dropout = 0.3
    unfold_attention(module, UnfoldedAttention)
    disable_dropout(module, {})
    output = module(x, x, x, hidden, need_weights=False)[0]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-14)
    gradients = [torch.autograd.grad(y.sum(), [x, module.in_proj_weight]) for y in (output, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", [TransformerEncoderLayer, TransformerDecoderLayer])
def test_masks_of_transformer_layers_do_not_depend_on_batch_first(kind: type[torch.nn.Module]) -> None:
    inputs = draw_inputs((WIDTH, WIDTH))[: 1 if kind is TransformerEncoderLayer else 2]
    outputs = []
    for batch_first in (True, False):
        torch.manual_seed(0)
        layer = kind(WIDTH, HEADS, 16, 0.3, batch_first=batch_first, dtype=torch.float64)
        align_dropout(layer)
        use_dropout_keys(layer, KEYS)
        arranged = inputs if batch_first else [x.transpose(0, 1) for x in inputs]
        output = layer(*arranged)
        outputs.append(output if batch_first else output.transpose(0, 1))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-13)


@pytest.mark.slow
def test_compiled_layer_is_one_graph_with_the_same_masks() -> None:
    x = draw_inputs(None)[0]
    layer = TransformerEncoderLayer(WIDTH, HEADS, 16, 0.3, batch_first=True, dtype=torch.float64)
    align_dropout(layer)
    use_dropout_keys(layer, KEYS)
    expected = layer(x)
    layer.compile(backend="eager", fullgraph=True, dynamic=True)
    use_dropout_keys(layer, KEYS)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-14)


def test_find_dropouts_names_layers_that_cannot_be_aligned() -> None:
    class Derived(MultiheadAttention):
        pass

    model = Sequential(
        MultiheadAttention(WIDTH, HEADS, 0.1, add_bias_kv=True),
        MultiheadAttention(WIDTH, HEADS, 0.2, add_zero_attn=True),
        Derived(WIDTH, HEADS, 0.3),
        torch.nn.LSTM(WIDTH, WIDTH, 2, dropout=0.4),
        MultiheadAttention(WIDTH, HEADS, 0.5),
        Linear(WIDTH, WIDTH),
    )
    unfold_attention(model, UnfoldedAttention)
    noises, others = find_dropouts(model)
    assert noises == {"4.attention_dropout": Noise("drop", "element", 0.5)}
    assert others == ["0 (MultiheadAttention)", "1 (MultiheadAttention)", "2 (Derived)", "3 (LSTM)"]


def test_aligned_dropout_refuses_a_query_without_an_axis_of_examples() -> None:
    x = draw_inputs(None)[0][0]
    module = attention()
    expected = module.eval()(x, x, x)[0]
    align_dropout(module)
    assert torch.equal(module(x, x, x)[0], expected)
    with pytest.raises(UserError, match=r"^model.torch: a MultiheadAttention with dropout gets a query \[queries, "):
        module.train()(x, x, x)
    plain = attention()
    unfold_attention(plain, UnfoldedAttention)
    assert plain(x, x, x)[0].isfinite().all()
