"""Wrong parameter maps of models that are the same, one mistake in each: a transformation of the right shape.

Each known kind of layer has one. The proof must refuse it and name the layer.
"""

from dataclasses import dataclass, replace

from common.map.pair_models import PairedModels
from common.map.pair_variables import VariablePair
from common.map.proof import prove_models
from common.map.transformation import parse_transformation
from tests.unit.common.conftest import Sides

ROWS_MOVED = "blocks 10 0 1 2 3 4 5 6 7 8 9 axis 0"


@dataclass(frozen=True)
class PlantedMap:
    """A wrong map: the kind of the layer, its wrong lines by Keras's variable, and the layers that the error names."""

    kind: str
    lines: dict[str, str]
    layers: str


def check_planted_map(sides: Sides, models: PairedModels, planted: PlantedMap) -> None:
    """Check that the proof refuses the wrong map of two models, which the sides hold, and names the layer."""
    parameter_map = models.parameter_map
    wrong = {path: VariablePair(path, parse_transformation(text)) for path, text in planted.lines.items()}
    planted_kinds = {
        pair.torch.kind for pair in parameter_map.layer_pairs if wrong.keys() & {*pair.keras.variable_names}
    }
    assert planted_kinds == {planted.kind}
    pairs = [wrong.get(pair.keras, pair) for pair in parameter_map.variable_pairs]
    assert sum(pair.keras in wrong for pair in pairs) == len(wrong)
    wrong_map = replace(parameter_map, variable_pairs=pairs)
    descriptions = models.torch_description, models.keras_description
    proof = prove_models(sides["torch"], sides["tf"], *descriptions, wrong_map, models.initial_weights, seed=0)
    assert planted.layers in "\n".join(proof.errors), proof.errors


PLANTED_MAPS = {  # by the factory of test_pairs
    "square": PlantedMap(
        "linear",
        {
            "sequential/dense/kernel": "2.weight | transpose 1 0",
            "sequential/dense_1/kernel": "0.weight | transpose 1 0",
        },
        "is 0 (PyTorch) and sequential/dense (Keras)",
    ),
    "repeated": PlantedMap(
        "linear", {"repeated/dense/kernel": "layer.weight"}, "is layer (PyTorch) and repeated/dense (Keras)"
    ),
    "conv1d": PlantedMap(
        "convolution",
        {"conv1d/kernel": "weight | blocks 2 1 0 axis 2 | transpose 2 1 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "conv2d": PlantedMap(
        "convolution",
        {"sequential/conv2d_1/kernel": "3.weight | transpose 3 2 1 0"},
        "is 3 (PyTorch) and sequential/conv2d_1 (Keras)",
    ),
    "conv3d": PlantedMap(
        "convolution", {"conv3d/kernel": "weight | transpose 2 4 3 1 0"}, "is model (PyTorch) and model (Keras)"
    ),
    "grouped": PlantedMap(
        "convolution",
        {"conv2d/kernel": "weight | blocks 1 0 axis 0 | transpose 2 3 1 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "depthwise": PlantedMap(
        "convolution",
        {"depthwise_conv2d/kernel": "weight | reshape 2 3 3 3 | transpose 2 3 1 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "depthwise1d": PlantedMap(
        "convolution",
        {"depthwise_conv1d/kernel": "weight | reshape 2 3 3 | transpose 2 1 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "separable": PlantedMap(
        "convolution",
        {"separable_conv2d/pointwise_kernel": "1.weight | blocks 1 0 axis 1 | transpose 2 3 1 0"},
        "is 1 (PyTorch) and model (Keras)",
    ),
    "residual": PlantedMap(
        "convolution",
        {
            "residual/conv2/kernel": "shortcut.weight | transpose 2 3 1 0",
            "residual/shortcut/kernel": "conv2.weight | transpose 2 3 1 0",
        },
        "is conv2 (PyTorch) and residual/conv2 (Keras)",
    ),
    "transposed1d": PlantedMap(
        "transposed convolution",
        {"conv1d_transpose/kernel": "weight | blocks 1 0 axis 2 | transpose 2 1 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "transposed2d": PlantedMap(
        "transposed convolution",
        {"conv2d_transpose/kernel": "weight | transpose 3 2 1 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "transposed3d": PlantedMap(
        "transposed convolution",
        {"conv3d_transpose/kernel": "weight | transpose 2 4 3 1 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "embedding": PlantedMap(
        "embedding",
        {"sequential/embedding/embeddings": f"0.weight | {ROWS_MOVED}"},
        "is 0 (PyTorch) and sequential/embedding (Keras)",
    ),
    "tied": PlantedMap(
        "embedding",
        {"tied/embedding/embeddings": f"tokens.weight | {ROWS_MOVED}"},
        "is tokens (PyTorch) and tied/embedding (Keras)",
    ),
    "layer_norm": PlantedMap(
        "layer norm",
        {"sequential/layer_normalization/gamma": "1.bias", "sequential/layer_normalization/beta": "1.weight"},
        "is 1 (PyTorch) and sequential/layer_normalization (Keras)",
    ),
    "normed_images": PlantedMap(
        "layer norm",
        {"sequential/layer_normalization/gamma": "1.weight"},
        "is 1 (PyTorch) and sequential/layer_normalization (Keras)",
    ),
    "rms_norm": PlantedMap(
        "RMS norm", {"rms_normalization/scale": "weight | blocks 1 0 axis 0"}, "is model (PyTorch) and model (Keras)"
    ),
    "batch_norm": PlantedMap(
        "batch norm",
        {
            "sequential/batch_normalization/moving_mean": "1.bias",
            "sequential/batch_normalization/beta": "1.running_mean",
        },
        "is 1 (PyTorch) and sequential/batch_normalization (Keras)",
    ),
    "batch_norm_1d": PlantedMap(
        "batch norm",
        {
            "sequential/batch_normalization/gamma": "1.running_var",
            "sequential/batch_normalization/moving_variance": "1.weight",
        },
        "is 1 (PyTorch) and sequential/batch_normalization (Keras)",
    ),
    "group_norm": PlantedMap(
        "group norm",
        {"group_normalization/gamma": "weight | blocks 1 0 axis 0"},
        "is model (PyTorch) and model (Keras)",
    ),
    "instance_norm": PlantedMap(
        "group norm",
        {"group_normalization/gamma": "bias", "group_normalization/beta": "weight"},
        "is model (PyTorch) and model (Keras)",
    ),
    "prelu": PlantedMap(
        "PReLU",
        {"p_re_lu/alpha": "weight | blocks 1 2 0 axis 0 | reshape 1 1 3"},
        "is model (PyTorch) and model (Keras)",
    ),
    "lstm": PlantedMap(
        "LSTM",
        {"lstm/lstm_cell/kernel": "layer.weight_ih_l0 | blocks 1 0 2 3 axis 0 | transpose 1 0"},
        "is layer.l0 (PyTorch) and model (Keras)",
    ),
    "stacked_lstm": PlantedMap(
        "LSTM",
        {
            "sequential/lstm/lstm_cell/recurrent_kernel": "layer.weight_hh_l1 | transpose 1 0",
            "sequential/lstm_1/lstm_cell/recurrent_kernel": "layer.weight_hh_l0 | transpose 1 0",
        },
        "is layer.l1 (PyTorch) and sequential/lstm_1 (Keras)",
    ),
    "bidirectional_lstm": PlantedMap(
        "LSTM",
        {
            "sequential/bidirectional_1/forward_lstm_1/lstm_cell/kernel": "layer.weight_ih_l1_reverse | transpose 1 0",
            "sequential/bidirectional_1/backward_lstm_1/lstm_cell/kernel": "layer.weight_ih_l1 | transpose 1 0",
        },
        "at layer.weight_ih_l0 (PyTorch) and sequential/bidirectional/forward_lstm/lstm_cell/kernel (Keras)",
    ),
    "gru": PlantedMap(
        "GRU", {"gru/gru_cell/kernel": "layer.weight_ih_l0 | transpose 1 0"}, "is layer.l0 (PyTorch) and model (Keras)"
    ),
    "bidirectional_gru": PlantedMap(
        "GRU",
        {
            "bidirectional/forward_gru/gru_cell/bias": "layer.bias_hh_l0, layer.bias_ih_l0 | blocks 1 0 2 axis 1",
        },
        "at layer.weight_ih_l0 (PyTorch) and bidirectional/forward_gru/gru_cell/kernel (Keras)",
    ),
    "cells": PlantedMap(
        "GRU",
        {"rnn/gru_cell/recurrent_kernel": "cell.weight_hh | transpose 1 0"},
        "after cell (PyTorch) and rnn/gru_cell (Keras)",
    ),
    "rnn": PlantedMap(
        "RNN", {"simple_rnn/simple_rnn_cell/bias": "layer.bias_ih_l0"}, "is layer.l0 (PyTorch) and model (Keras)"
    ),
    "self_attention": PlantedMap(
        "linear",
        {
            f"self_attention/multi_head_attention/{name}/kernel": f"attention.in_proj_weight[{rows}] | reshape 2 4 8 | "
            "transpose 2 0 1"
            for name, rows in (("key", "16:24"), ("value", "8:16"))
        },
        "is attention.output (PyTorch) and self_attention/multi_head_attention/attention_output (Keras)",
    ),
    "cross_attention": PlantedMap(
        "linear",
        {
            "cross_attention/multi_head_attention/value/kernel": "attention.v_proj_weight | reshape 4 2 6 | "
            "transpose 2 1 0"
        },
        "is attention.output (PyTorch) and cross_attention/multi_head_attention/attention_output (Keras)",
    ),
    "own_attention": PlantedMap(
        "linear",
        {
            "own_attention/query/kernel": "key.weight | reshape 2 4 8 | transpose 2 0 1",
            "own_attention/key/kernel": "query.weight | reshape 2 4 8 | transpose 2 0 1",
        },
        "is key (PyTorch) and own_attention/key (Keras)",
    ),
    "fused_attention": PlantedMap(
        "linear",
        {
            "self_attention/multi_head_attention/query/kernel": "qkv.weight | reshape 2 12 8 | transpose 1 0 2 | "
            "rows 0 4 | transpose 1 0 2 | transpose 2 0 1"
        },
        "at qkv.weight (PyTorch) and self_attention/multi_head_attention/query/kernel (Keras)",
    ),
    "fused_dense": PlantedMap(
        "linear",
        {"fused_dense/dense/kernel": "attention.in_proj_weight | blocks 0 2 1 axis 0 | transpose 1 0"},
        "is attention.output (PyTorch) and fused_dense/dense_1 (Keras)",
    ),
    "plain": PlantedMap(
        "parameter",
        {"plain/scale": "shift | reshape 6", "plain/shift": "scale | reshape 1 6"},
        "at scale (PyTorch) and plain/scale (Keras)",
    ),
    "flattened": PlantedMap(
        "linear", {"sequential/dense/kernel": "5.weight | transpose 1 0"}, "is 5 (PyTorch) and sequential/dense (Keras)"
    ),
    "cube": PlantedMap(
        "linear", {"cube/dense/kernel": "head.weight | transpose 1 0"}, "is head (PyTorch) and cube/dense (Keras)"
    ),
}
FOREIGN_PLANTED_MAPS = {  # by the factory of test_foreign_layers and the names of its arguments
    "transposed_linear": PlantedMap(
        "linear",
        {"sequential/dense/kernel": "0.weight | reshape 8 6 | transpose 1 0"},
        "is 0 (PyTorch) and sequential/dense (Keras)",
    ),
    "fused": PlantedMap(
        "linear",
        {
            f"attention/{name}/kernel": f"fused.weight[{rows}] | reshape 2 4 8 | transpose 2 0 1"
            for name, rows in (("key", "16:24"), ("value", "8:16"))
        },
        "at fused.weight (PyTorch) and attention/query/kernel (Keras)",
    ),
    "fused by_head": PlantedMap(
        "linear",
        {"attention/value/kernel": "fused.weight[16:24] | reshape 2 4 8 | transpose 2 0 1"},
        "at fused.weight (PyTorch) and attention/query/kernel (Keras)",
    ),
    "fused_transposed": PlantedMap(
        "linear",
        {"attention/query/kernel": "fused.weight | reshape 24 8 | rows 0 8 | reshape 2 4 8 | transpose 2 0 1"},
        "at fused.weight (PyTorch) and attention/query/kernel (Keras)",
    ),
    "fused_groups": PlantedMap(
        "linear",
        {
            f"attention/{name}/kernel": f"fused.weight[{rows}] | reshape 1 4 8 | transpose 2 0 1"
            for name, rows in (("key", "12:16"), ("value", "8:12"))
        },
        "at fused.weight (PyTorch) and attention/query/kernel (Keras)",
    ),
    "pointwise": PlantedMap(
        "convolution",
        {"sequential/conv2d/kernel": "linear.weight | reshape 1 1 6 6"},
        "is linear (PyTorch) and sequential/conv2d (Keras)",
    ),
    "separate": PlantedMap(
        "linear",
        {"fused_projections/dense/kernel": "query.weight, value.weight, key.weight | reshape 24 8 | transpose 1 0"},
        "at query.weight (PyTorch) and fused_projections/dense/kernel (Keras)",
    ),
    "gated": PlantedMap(
        "linear",
        {
            "gated_feed_forward/dense/kernel": "gate_up.weight[5:10] | transpose 1 0",
            "gated_feed_forward/dense_1/kernel": "gate_up.weight[0:5] | transpose 1 0",
        },
        "at gate_up.weight (PyTorch) and gated_feed_forward/dense/kernel (Keras)",
    ),
    "positions": PlantedMap(
        "embedding",
        {"positions/embedding_1/embeddings": "positions.weight[2:10]"},
        "is positions (PyTorch) and positions/embedding_1 (Keras)",
    ),
    "positions first": PlantedMap(
        "embedding",
        {"positions/embedding_1/embeddings": "positions.weight[0:8]"},
        "is positions (PyTorch) and positions/embedding_1 (Keras)",
    ),
    "offset": PlantedMap(
        "parameter",
        {"learned_offset/embedding/embeddings": "offset | blocks 4 0 1 2 3 axis 1 | reshape 5 4"},
        "at offset (PyTorch) and learned_offset/embedding/embeddings (Keras)",
    ),
    "without_head": PlantedMap(
        "linear",
        {"with_head/dense/kernel": "2.weight | transpose 1 0", "with_head/dense_1/kernel": "0.weight | transpose 1 0"},
        "is 0 (PyTorch) and with_head/dense (Keras)",
    ),
    "norms": PlantedMap(
        "parameter",
        {"sequential/rms_normalization/scale": "2.weight", "sequential/rms_normalization_1/scale": "0.weight"},
        "at 0.weight (PyTorch) and sequential/rms_normalization/scale (Keras)",
    ),
    "norm_in_float32": PlantedMap(
        "parameter",
        {"root_mean_square_norm/scale": "weight | blocks 1 0 axis 0"},
        "at weight (PyTorch) and root_mean_square_norm/scale (Keras)",
    ),
    "experts": PlantedMap(
        "parameter", {"experts/gate_up": "gate_up | reshape 3 8 10"}, "at gate_up (PyTorch) and experts/gate_up (Keras)"
    ),
    "split_experts": PlantedMap(
        "parameter",
        {
            f"split_experts/{name}": f"gate_up | transpose 1 0 2 | rows {rows} | transpose 1 2 0"
            for name, rows in (("gate", "5 10"), ("up", "0 5"))
        },
        "at gate_up (PyTorch) and split_experts/gate (Keras)",
    ),
    "position_table": PlantedMap(
        "parameter",
        {"position_table/positions": "positions.weight | blocks 4 0 1 2 3 axis 0"},
        "at positions.weight (PyTorch) and position_table/positions (Keras)",
    ),
}
