"""Pairs that others wrote side by side in public repositories."""

from dataclasses import replace

from benchmarks.zoo.pairs import ZooPair

HERE = "benchmarks.zoo"
SAMURAI = "PythoneerSamurai/pytorch-keras--model-implementations"
FNET = "abdelghanibelgaid/FNet-TensorFlow-PyTorch"
MNIST = "mg-ml-explore/mnist-compare-keras-pytorch"
VAE = "jasonrobwebster/vae-keras-pytorch"


def _build_pair(name: str, repository: str, torch_file: str, keras_file: str, inputs: str) -> ZooPair:
    return ZooPair(
        name=name,
        torch=f"{HERE}.repository_torch:{name}",
        keras=f"{HERE}.repository_keras:{name}",
        inputs={"x": inputs},
        torch_source=f"{repository} {torch_file}",
        keras_source=f"{repository} {keras_file}",
    )


REPOSITORY_PAIRS = (
    _build_pair(
        "alexnet", SAMURAI, "AlexNet/pytorch_alexnet.py", "AlexNet/keras_alexnet.py", "float32[4,227,227,channels=3]"
    ),
    _build_pair("fnet_encoder", FNET, "fnet_pytorch.py", "fnet_tensorflow.py", "float32[4,8,32]"),
    _build_pair("mnist", MNIST, "pytorch_mnist/model.py", "keras_mnist/model_utils.py", "float32[4,28,28,channels=1]"),
    replace(
        _build_pair("autoencoder", VAE, "vae/pytorch.py", "vae/keras.py", "float32[4,28,28,1]"),
        task={"task": "regression"},
        label_shape=(28, 28, 1),
    ),
)
