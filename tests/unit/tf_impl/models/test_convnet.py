"""Tests of the convolutional network and its parameters against PyTorch. TensorFlow runs in a separate process."""

import numpy as np
import pytest
import torch

from common.config.compose import parse_config, save_config
from common.config.schema import Config
from common.run.prepare import prepare_inputs
from tests.conftest import Compose, Python
from tests.unit.common.data.images.idx_samples import write_idx
from torch_impl.batches import to_tensors
from torch_impl.models import build_model
from torch_impl.step import compute_outputs

COMPUTE = """
import math
import sys
from pathlib import Path
import numpy as np
from common.config.compose import load_config
from common.data.batches import GlobalBatch
from common.map.transformation import parse_transformation
from common.models.spec import load_spec
from common.run.prepare import prepare_inputs
from tf_impl.batches import to_tensors
from tf_impl.models import build_model
from tf_impl.models.weights import read_weights
from tf_impl.step import compute_outputs

for path in map(Path, sys.argv[1:]):
    config, prepared = prepare_inputs(load_config(path), None)
    model = build_model(config, prepared.initial)
    batch = to_tensors(GlobalBatch(1, np.arange(7), prepared.cache.train, "global", dropout_seed=0).shard(0, 1))[0]
    modes = {"first": False, "training": True}
    logits = {name: compute_outputs(model, batch, training=mode).numpy() for name, mode in modes.items()}
    again = compute_outputs(model, batch, training=False).numpy()
    spec, hf_config = load_spec(config.model), prepared.initial.hf_config
    shapes = spec.get_parameter_shapes(hf_config)
    numbers = {name: np.arange(math.prod(shape)).reshape(shape) for name, shape in shapes.items()}
    texts = map(parse_transformation, spec.list_transformations(hf_config))
    layouts = {text.sources[0].name: text.to_keras(numbers) for text in texts}
    for parameter in model.named_parameters:
        assert np.array_equal(parameter.to_keras(numbers), layouts[parameter.name]), parameter.name
    np.savez(path.with_suffix(".npz"), again=again, **logits, **read_weights(model))
"""
Computed = dict[str, tuple[Config, dict[str, np.ndarray]]]

TOLERANCES = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def computed(composed: Compose, tmp_path_factory: pytest.TempPathFactory, keras_python: Python) -> Computed:
    """Return the config and the TensorFlow arrays of each precision. Images are not square, and dropout is high."""
    folder = tmp_path_factory.mktemp("convnet")
    stream, labels = np.random.default_rng(0), np.arange(8, dtype=np.uint8)
    for prefix in ("train", "t10k"):
        write_idx(folder, prefix, stream.integers(0, 256, (8, 13, 8), np.uint8), labels, zipped=False)
    configs = {}
    for precision in TOLERANCES:
        configs[precision] = parse_config(
            composed(
                "model=convnet",
                "model.dropout=0.9",
                "data=idx",
                f"data.directory={folder}",
                f"train.precision={precision}",
                f"cache_dir={folder / 'cache'}",
            )
        )
        save_config(configs[precision], folder / f"{precision}.yaml")
    keras_python(COMPUTE, *(folder / f"{precision}.yaml" for precision in configs))
    return {precision: (config, dict(np.load(folder / f"{precision}.npz"))) for precision, config in configs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("precision", TOLERANCES)
def test_logits_are_those_of_pytorch(computed: Computed, precision: str) -> None:
    config, arrays = computed[precision]
    _, prepared = prepare_inputs(config, None)
    batch = to_tensors([prepared.cache.train.gather(np.arange(7), np.arange(7))], torch.device("cpu"))[0]
    expected = compute_outputs(build_model(config, prepared.initial).eval(), batch, precision).detach().numpy()
    assert arrays["first"].dtype == expected.dtype
    assert np.abs(arrays["first"] - expected).max() <= TOLERANCES[precision]


@pytest.mark.parametrize("precision", TOLERANCES)
def test_parameters_are_those_of_the_checkpoint(computed: Computed, precision: str) -> None:
    config, arrays = computed[precision]
    weights = prepare_inputs(config, None)[1].initial.weights()
    dtype = np.float64 if precision == "float64" else np.float32
    for name, weight in weights.items():
        assert arrays[name].dtype == dtype and np.array_equal(arrays[name], weight.astype(dtype)), name


@pytest.mark.parametrize("precision", TOLERANCES)
def test_dropout_is_active_only_in_training(computed: Computed, precision: str) -> None:
    _, arrays = computed[precision]
    assert np.array_equal(arrays["first"], arrays["again"])
    assert not np.array_equal(arrays["first"], arrays["training"])
