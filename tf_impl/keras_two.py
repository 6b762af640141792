"""A Keras 2 model (`tf_keras`) as a layer of Keras 3, which the other files of this side use like any other model.

Keras 2 is optional: Lockstep's own code never imports it. Its layers compute what they always do. They get the
attributes that Keras 3's layers have (`path`, `_layers`, `_trainable_variables`), and their variables are wrapped in
Keras 3's, which share the values.
"""

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import tensorflow as tf
import tensorflow.compat.v2 as tensorflow_v2
from keras.src.utils.naming import reset_uids
from packaging.version import Version
from typing_extensions import override

from common.config.import_object import import_function
from common.errors import UserError
from common.map.factory import call_factory
from common.map.keras_classes import KERAS_2, find_keras_class
from common.map.keras_paths import make_unique
from common.models.checkpoint_kinds import find_tensorflow_prefix

OLDEST_KERAS = Version("3.6")  # oldest version that was tried; the layers of Keras 3.3 have no paths
TENSORFLOW_MODULES = (tf, tensorflow_v2)  # both have all functions; Keras 2 calls the functions of the second


class SharedVariable(keras.Variable):
    """A variable of Keras 3 that holds its value in a variable of Keras 2."""

    def __init__(self, variable: tf.Variable, path: str, trainable: bool) -> None:
        """Wrap a variable. path: its unique path; trainable: whether its layer trains it."""
        self._shared = getattr(variable, "_variable", variable)  # without the casts of mixed precision
        super().__init__(
            lambda shape, dtype: None,  # its value exists
            shape=variable.shape,
            dtype=variable.dtype.name,
            trainable=trainable,
            aggregation=variable.aggregation.name.lower(),
            name=path.rpartition("/")[2],
        )
        self._path = path

    @override
    def _initialize(self, value: object) -> None:
        self._value = self._shared


class KerasTwoModel(keras.Layer):
    """A layer of Keras 3 that computes a model of Keras 2.

    Attributes:
        keras_two: The model or layer of Keras 2.
    """

    def __init__(self, model: Any) -> None:  # noqa: ANN401  a tf_keras.layers.Layer
        """Wrap the model of a user's factory. Layers may create their variables at the first call."""
        super().__init__(name=model.name)
        self.__dict__["keras_two"] = model  # Keras 3 would track it
        self._layers.append(model)
        self._shared: dict[int, SharedVariable] = {}  # by the identity of Keras 2's variable
        self._called_modes: set[bool] = set()
        self.built = True  # otherwise the first call of a model around it computes it with symbolic tensors, too
        model.__dict__["_call_signature"] = inspect.signature(model.call)
        # Keras 2 passes the mode to the inner layers even if the model's own `call` does not take it.
        model.__dict__["_call_has_training_arg"] = True
        self._describe_layers()

    @property
    @override
    def variables(self) -> list[keras.Variable]:
        return list(self._shared.values())

    @property
    @override
    def losses(self) -> list[tf.Tensor]:
        return list(self.keras_two.losses)

    @override
    def __call__(self, *args: object, training: bool = False, **kwargs: object) -> object:
        outputs = self.keras_two(*args, **kwargs, training=training)
        if training not in self._called_modes:  # layers may create variables in their first call of a mode
            self._called_modes.add(training)
            self._describe_layers()
        return outputs

    def load_weights(self, path: str) -> None:
        """Load a file of Keras 2, a SavedModel or a checkpoint of TensorFlow."""
        prefix = find_tensorflow_prefix(Path(path))
        if prefix is None:
            self.keras_two.load_weights(path)
            return
        with TemporaryDirectory(prefix="lockstep-") as directory:
            copy = f"{directory}/weights"
            _convert_checkpoint(str(prefix), copy)
            self.keras_two.load_weights(copy).expect_partial()  # a SavedModel has more than the model

    def _describe_layers(self) -> None:
        """Give the layers the attributes of Keras 3's, and wrap the variables that they have created so far."""
        model = self.keras_two
        layers = _list_layers(model)
        owned = {id(variable) for layer in layers.values() for variable in _list_own_weights(layer)}
        trained = {id(variable) for variable in model.trainable_weights}
        for path, layer in layers.items():
            variables = self._wrap(layer, path, _list_own_weights(layer), trained)
            if layer is model:  # the variables of a tf.Module that is not a layer belong to the model
                variables += self._wrap(model, path, [x for x in model.weights if id(x) not in owned], trained)
            vars(layer).update(
                path=path,
                _layers=list(layer._flatten_layers(recursive=False, include_self=False)),
                _trainable_variables=[variable for variable in variables if variable.trainable],
                _non_trainable_variables=[variable for variable in variables if not variable.trainable],
            )

    def _wrap(
        self,
        layer: Any,  # noqa: ANN401  a layer of Keras 2
        path: str,
        variables: Sequence[tf.Variable],
        trained: Collection[int],
    ) -> list[SharedVariable]:
        """Return the wrappers of the variables of a layer at a path. trained: the variables that are trained, by id."""
        for variable in variables:
            if id(variable) not in self._shared:
                name = variable.name.rpartition("/")[2].partition(":")[0]
                taken = [wrapper.path for wrapper in self._shared.values()]
                unique_path = make_unique(f"{path}/{name}", taken)
                wrapper = SharedVariable(variable, unique_path, id(variable) in trained)
                role = name.removesuffix("_kernel")  # depthwise_regularizer belongs to depthwise_kernel
                wrapper.regularizer = getattr(layer, f"{name}_regularizer", getattr(layer, f"{role}_regularizer", None))
                wrapper.constraint = variable.constraint
                self._shared[id(variable)] = wrapper
        return [self._shared[id(variable)] for variable in variables]


def _list_layers(model: Any) -> dict[str, Any]:  # noqa: ANN401  a tf_keras.layers.Layer, and its layers
    """Return a model and all its layers by unique path, such as inner/dense. The path of the model is its name."""
    layers, listed = {model.name: model}, {id(model)}
    pending = [("", model)]
    while pending:
        prefix, outer = pending.pop(0)
        for layer in outer._flatten_layers(recursive=False, include_self=False):
            if id(layer) not in listed:
                listed.add(id(layer))
                path = make_unique(f"{prefix}{layer.name}", layers)
                layers[path] = layer
                pending.append((f"{path}/", layer))
    return layers


def _list_own_weights(layer: Any) -> list[tf.Variable]:  # noqa: ANN401  a tf_keras.layers.Layer
    return [*layer._trainable_weights, *layer._non_trainable_weights]


def _convert_checkpoint(prefix: str, copy: str) -> None:
    """Copy a checkpoint of TensorFlow in Keras's type of floats: TensorFlow restores a variable only from its own."""
    reader = tf.train.load_checkpoint(prefix)
    names = list(reader.get_variable_to_shape_map())
    tensors = [tf.constant(reader.get_tensor(name)) for name in names]
    floats = [tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor for tensor in tensors]
    tf.raw_ops.SaveV2(prefix=copy, tensor_names=names, shape_and_slices=[""] * len(names), tensors=floats)


def build_user_model(key: str, factory: str, arguments: Mapping[str, object]) -> keras.Layer:
    """Return the model of a factory; one of Keras 2 as a layer of Keras 3, with Keras 3's type of floats.

    Args:
        key: The config key that names the factory.
        factory: The factory as module:function.
        arguments: Its keyword arguments.

    Raises:
        UserError: The factory failed, or returned no model, or Keras is too old.
    """
    if Version(keras.__version__) < OLDEST_KERAS:
        raise UserError(
            f"{key}={factory}: needs Keras {OLDEST_KERAS} or newer, and the environment has Keras {keras.__version__}; "
            "upgrade Keras, or name the interpreter of another environment"
        )
    reset_uids()  # the numbers in names of layers start again, so that a model has the same names in every process
    import_function(key, factory)
    is_prepared = _prepare_keras_two()
    try:
        model = call_factory(key, factory, arguments)
    except UserError:
        if is_prepared or KERAS_2 not in sys.modules:
            raise
    if not is_prepared and KERAS_2 in sys.modules:  # the factory itself has imported it
        return build_user_model(key, factory, arguments)
    if find_keras_class(model, "Layer", (KERAS_2,)) is not None:
        return KerasTwoModel(model)
    if not isinstance(model, keras.Layer):
        raise UserError(f"{key}={factory}: returned {type(model).__name__}, not a keras.Model or keras.Layer")
    return model


def _prepare_keras_two() -> bool:
    """Give Keras 2 the settings of Keras 3. Return whether the code of the user has imported it."""
    tf_keras = sys.modules.get(KERAS_2)
    if tf_keras is None:
        return False
    tf_keras.backend.reset_uids()
    tf_keras.backend.set_floatx(keras.config.floatx())
    tf_keras.mixed_precision.set_global_policy(keras.config.dtype_policy().name)
    return True


def replace_class(layer: Any, mixin: type, base: type | None = None) -> None:  # noqa: ANN401  a layer of any Keras
    """Make a layer compute with the methods of a mixin instead of its class.

    Args:
        layer: A layer of Keras 3 or Keras 2.
        mixin: The class with the methods.
        base: The class of the other methods; None for the class Layer of the layer's own Keras.
    """
    layer.__class__ = _derive_class(mixin, base or find_keras_class(layer, "Layer"))


@cache
def _derive_class(mixin: type, base: type) -> type:
    return type(mixin.__name__, (mixin, base), {})
