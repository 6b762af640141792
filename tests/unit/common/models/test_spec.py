import numpy as np
import pytest

from common.config.models import MODELS
from common.models.spec import ModelSpec, load_spec

HF_CONFIGS = {
    "bert": {
        "vocab_size": 11,
        "hidden_size": 4,
        "intermediate_size": 6,
        "max_position_embeddings": 8,
        "type_vocab_size": 2,
        "num_hidden_layers": 1,
        "initializer_range": 0.02,
        "id2label": {"0": "a", "1": "b"},
    },
    "convnet": {
        "image_shape": [8, 8, 1],
        "channels": [2, 3],
        "kernel_size": 3,
        "hidden_size": 5,
        "id2label": {"0": "a", "1": "b"},
    },
}


@pytest.mark.parametrize(
    "kind", [kind for kind in MODELS if kind != "custom"]
)  # the factory of a custom model draws the weights
def test_every_kind_of_model_has_a_spec(kind: str) -> None:
    schema = MODELS[kind]
    spec: ModelSpec = load_spec(object.__new__(schema))
    hf_config = HF_CONFIGS["convnet" if kind == "convnet" else "bert"]
    shapes = spec.get_parameter_shapes(hf_config)
    assert shapes
    for name, shape in shapes.items():
        parameter = spec.draw_parameter(hf_config, name, shape, np.random.default_rng(0))
        assert (parameter.shape, parameter.dtype) == (shape, np.float32), name
