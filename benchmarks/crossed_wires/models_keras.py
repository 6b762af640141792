"""Models of keras.applications, with the settings of torchvision after the changes of a ladder."""

from typing import Any

import keras

from benchmarks.crossed_wires.ladders import CLASSES, IMAGE_SIZE, select_changes

SETTINGS = {"weights": None, "classes": CLASSES, "input_shape": (IMAGE_SIZE, IMAGE_SIZE, 3)}
CHANGED_SETTINGS: dict[str, tuple[type, dict[str, Any]]] = {  # by the change: the kind of layer and its settings
    "biases": (keras.layers.Conv2D, {"use_bias": False}),
    "epsilon": (keras.layers.BatchNormalization, {"epsilon": 1e-5}),
    "momentum": (keras.layers.BatchNormalization, {"momentum": 0.9}),
}


def change_settings(model: keras.Model, pair: str, changes: int) -> keras.Model:
    """Return a copy of a model with the settings of the first changes of its ladder."""
    selected = [CHANGED_SETTINGS[name] for name in select_changes(pair, changes) if name in CHANGED_SETTINGS]

    def copy_layer(layer: keras.Layer) -> keras.Layer:
        config = layer.get_config()
        for kind, settings in selected:
            if isinstance(layer, kind):
                config.update(settings)
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=copy_layer)


def vgg16(changes: int) -> keras.Model:
    """Return VGG16. The changes only affect PyTorch's model."""
    return keras.applications.VGG16(**SETTINGS, classifier_activation=None)


def resnet50(changes: int) -> keras.Model:
    """Return ResNet-50."""
    model = keras.applications.ResNet50(**SETTINGS, classifier_activation=None)
    return change_settings(model, "resnet50", changes)


def densenet121(changes: int) -> keras.Model:
    """Return DenseNet121."""
    model = keras.applications.DenseNet121(**SETTINGS, classifier_activation=None)
    return change_settings(model, "densenet121", changes)
