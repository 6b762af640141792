"""Tests that a ForwardTrace records the layers of TensorFlow's BERT, which does not call them."""

from pathlib import Path

import numpy as np
import pytest

from common.config.compose import parse_config, save_config
from tests.conftest import SMALL_CORPUS, Compose, Python

COMPUTE = """
import math
import sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from common.config.compose import load_config
from common.data.batches import GlobalBatch
from common.map.description import RecordedCall
from common.map.transformation import parse_transformation
from common.models.spec import load_spec
from common.run.prepare import prepare_inputs
from tf_impl.batches import to_tensors
from tf_impl import forward_trace
from tf_impl.forward_trace import ForwardTrace
from tf_impl.models import build_model
from tf_impl.models.bert import _embed
from tf_impl.step import compute_outputs

path = Path(sys.argv[1])
config, prepared = prepare_inputs(load_config(path), None)
model = build_model(config, prepared.initial)
batch = to_tensors(GlobalBatch(1, np.arange(7), prepared.cache.train, "unpadded").shard(0, 1))[0]
dense = model.backbone.transformer_layers[1]._feedforward_output_dense
dense.bias.assign(np.ones(dense.bias.shape))
arrays = {"untraced": compute_outputs(model, batch, training=False).numpy()}
with ForwardTrace(model) as trace:
    arrays["traced"] = compute_outputs(model, batch, training=False).numpy()
assert not forward_trace.is_tracing and not trace.unflattened_shapes
for layer_path, call in trace.calls.items():
    arrays |= {f"{layer_path} received": call.received, f"{layer_path} returned": call.returned}
call = trace.calls[dense.path]
channel_numbers = np.arange(call.returned.shape[-1])
replacement = RecordedCall(np.zeros_like(call.received), np.ones_like(call.returned) * channel_numbers)
with ForwardTrace(model, {dense.path: replacement}) as trace:
    compute_outputs(model, batch, training=False)
call = trace.calls[dense.path]
arrays["input of the replaced"], arrays["output of the replaced"] = call.received, call.returned
arrays["next input"] = trace.calls[model.backbone.transformer_layers[1]._feedforward_layer_norm.path].received
arrays["layers"] = [parameter.variable.path.rpartition("/")[0] for parameter in model.named_parameters]

spec, hf_config = load_spec(config.model), prepared.initial.hf_config
shapes = spec.get_parameter_shapes(hf_config)
numbers = {name: np.arange(math.prod(shape)).reshape(shape) for name, shape in shapes.items()}
texts = map(parse_transformation, spec.list_transformations(hf_config))
layouts = {text.sources[0].name: text.to_keras(numbers) for text in texts}
arrays["layouts"] = [np.array_equal(x.to_keras(numbers), layouts[x.name]) for x in model.named_parameters]
layer = keras.layers.Embedding(50, 4)
layer.build()
look_up = tf.function(lambda ids: _embed(layer, layer.embeddings, ids), [tf.TensorSpec([None], tf.int32)])
graph = look_up.get_concrete_function().graph
arrays["looked up"], arrays["rows"] = look_up(tf.constant([3, 1])), layer.embeddings.numpy()[[3, 1]]
arrays["readers of the table"] = [operation.type for operation in graph.inputs[-1].consumers()]
np.savez(path.with_suffix(".npz"), **arrays)
"""
DENSE = "transformer_layer_1/feedforward_output_dense"
NORM = "transformer_layer_1/self_attention_layer_norm"


@pytest.fixture(scope="module")
def arrays(composed: Compose, tmp_path_factory: pytest.TempPathFactory, keras_python: Python) -> dict[str, np.ndarray]:
    folder: Path = tmp_path_factory.mktemp("bert")
    small = ("model.hidden_size=8", "model.intermediate_size=16", "model.max_vocabulary=200")
    overrides = (*SMALL_CORPUS, *small, "train.precision=float64", f"cache_dir={folder / 'cache'}")
    save_config(parse_config(composed(*overrides)), folder / "config.yaml")
    keras_python(COMPUTE, folder / "config.yaml")
    return dict(np.load(folder / "config.npz"))


@pytest.mark.slow
def test_trace_records_every_layer_and_changes_nothing(arrays: dict[str, np.ndarray]) -> None:
    assert len({*arrays["layers"].tolist()}) == 3 + 1 + 2 * 8 + 2
    assert {f"{layer} received" for layer in arrays["layers"]} <= arrays.keys()
    assert np.abs(arrays["traced"] - arrays["untraced"]).max() < 1e-14
    assert arrays["layouts"].all() and len(arrays["layouts"]) == 5 + 2 * 16 + 4  # those that list_transformations says
    tokens = arrays["token_embedding received"].shape
    for name, size in (("query", 8), ("attention_output", 8)):
        assert arrays[f"transformer_layer_1/self_attention_layer/{name} returned"].shape == (*tokens, size)
    assert arrays["transformer_layer_0/feedforward_intermediate_dense returned"].shape == (*tokens, 16)


def test_replaced_layer_computes_on_its_counterparts_input_and_passes_on_its_output(
    arrays: dict[str, np.ndarray],
) -> None:
    assert np.array_equal(arrays["input of the replaced"], arrays[f"{DENSE} received"])
    assert np.array_equal(arrays["output of the replaced"], np.ones_like(arrays["output of the replaced"])), (
        "it must return its bias"
    )
    np.testing.assert_allclose(arrays["next input"], arrays[f"{NORM} returned"] + np.arange(8), rtol=1e-14)


def test_embedding_gathers_rows_instead_of_reading_the_whole_table(arrays: dict[str, np.ndarray]) -> None:
    """Otherwise a parameter server would send the whole table for a few rows."""
    assert np.array_equal(arrays["looked up"], arrays["rows"])
    assert arrays["readers of the table"].tolist() == ["ResourceGather"]
