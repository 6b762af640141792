"""BERT as a Trace sees it: its layers, which it does not call. TensorFlow has its own process."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.config.compose import parse_config, save_config
from tests.conftest import SMALL_CORPUS, Compose, Python

COMPUTE = """
import sys
from pathlib import Path
import numpy as np
from common.config.compose import load_config
from common.data.batches import GlobalBatch
from common.map.description import Call
from common.run.prepare import prepare_inputs
from tf_impl import calling
from tf_impl.batches import to_tensors
from tf_impl.models import build_model
from tf_impl.step import compute_outputs
from tf_impl.forward_trace import ForwardTrace

path = Path(sys.argv[1])
config, prepared = prepare_inputs(load_config(path), None)
model = build_model(config, prepared.initial)
batch = to_tensors(GlobalBatch(1, np.arange(7), prepared.cache.train, "unpadded").shard(0, 1))[0]
dense = model.backbone.transformer_layers[1]._feedforward_output_dense
dense.bias.assign(np.ones(dense.bias.shape))
arrays = {"untraced": compute_outputs(model, batch, training=False).numpy()}
with ForwardTrace(model) as trace:
    arrays["traced"] = compute_outputs(model, batch, training=False).numpy()
assert not calling.followed and not trace.flattened
for path_, call in trace.calls.items():
    arrays |= {f"{path_} received": call.received, f"{path_} returned": call.returned}
call = trace.calls[dense.path]
given = Call(np.zeros_like(call.received), np.ones_like(call.returned) * np.arange(call.returned.shape[-1]))
with ForwardTrace(model, {dense.path: given}) as trace:
    compute_outputs(model, batch, training=False)
arrays["own input"], arrays["own output"] = trace.calls[dense.path].received, trace.calls[dense.path].returned
arrays["next input"] = trace.calls[model.backbone.transformer_layers[1]._feedforward_layer_norm.path].received
arrays["layers"] = [each.variable.path.rpartition("/")[0] for each in model.named_parameters]
np.savez(path.with_suffix(".npz"), **arrays)
"""
DENSE = "transformer_layer_1/feedforward_output_dense"
NORM = "transformer_layer_1/self_attention_layer_norm"


@pytest.fixture(scope="module")
def found(composed: Compose, tmp_path_factory: pytest.TempPathFactory, python: Python) -> dict[str, np.ndarray]:
    folder: Path = tmp_path_factory.mktemp("bert")
    small = ("model.hidden_size=8", "model.intermediate_size=16", "model.max_vocabulary=200")
    overrides = (*SMALL_CORPUS, *small, "train.precision=float64", f"cache_dir={folder / 'cache'}")
    save_config(parse_config(composed(*overrides)), folder / "config.yaml")
    python(COMPUTE, folder / "config.yaml")
    return dict(np.load(folder / "config.npz"))


def test_every_layer_is_seen_and_computes_the_same(found: dict[str, np.ndarray]) -> None:
    assert len({*found["layers"].tolist()}) == 3 + 1 + 2 * 8 + 2
    assert {f"{each} received" for each in found["layers"]} <= found.keys()
    assert np.abs(found["traced"] - found["untraced"]).max() < 1e-14
    tokens = found["token_embedding received"].shape
    for name, size in (("query", 8), ("attention_output", 8)):
        assert found[f"transformer_layer_1/self_attention_layer/{name} returned"].shape == (*tokens, size)
    assert found["transformer_layer_0/feedforward_intermediate_dense returned"].shape == (*tokens, 16)


def test_a_layer_computes_what_it_is_given_and_the_next_goes_on_with_what_that_returns(
    found: dict[str, np.ndarray],
) -> None:
    assert np.array_equal(found["own input"], found[f"{DENSE} received"])
    assert np.array_equal(found["own output"], np.ones_like(found["own output"])), "its bias"
    np.testing.assert_allclose(found["next input"], found[f"{NORM} returned"] + np.arange(8), rtol=1e-14)


LOOK_UP = """
import json
import keras
import tensorflow as tf
from tf_impl.models.bert import _embed

layer = keras.layers.Embedding(50, 4)
layer.build()
looked_up = tf.function(lambda ids: _embed(layer, layer.embeddings, ids), [tf.TensorSpec([None], tf.int32)])
concrete = looked_up.get_concrete_function()
assert concrete(tf.constant([3, 1])).numpy().tolist() == layer.embeddings.numpy()[[3, 1]].tolist()
print(json.dumps([each.type for each in concrete.graph.inputs[-1].consumers()]))
"""


def test_an_embedding_is_never_read_as_a_whole(python: Python) -> None:
    """Else a parameter server would send all of it for a few rows."""
    assert json.loads(python(LOOK_UP)) == ["ResourceGather"]
