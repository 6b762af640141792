"""A user's model in float64: a description of its layers, and its outputs and gradients, for common.map.

common.map pairs the variables of a user's PyTorch model with the variables of the user's Keras model, and checks that
both models compute the same. The path of a layer is its name in the model.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial

import keras
import numpy as np
import tensorflow as tf

from common.config.tasks import TaskSettings
from common.errors import UserError, describe_error
from common.map.changing_buffers import compute_checksums, find_changes
from common.map.description import (
    Arrays,
    ComputedPass,
    DropoutDescription,
    ModelDescription,
    ObservedPass,
    RecordedCall,
    list_probabilities,
    list_received_shapes,
)
from common.map.factory import list_user_files
from common.map.input_specs import InputSpec
from common.map.keras_calls import get_training_argument
from common.map.keras_paths import layers_by_path
from common.map.mixed_examples import BatchGradients, BatchPass, choose_example, find_mixing_layer, observe_gradients
from common.map.random_layers import observe_training, read_python_generators
from common.map.single_values import find_norms_of_single_values
from common.map.unused_variables import find_unused
from common.models.loaded_weights import UNREAD, check_all_read, is_floating
from tf_impl.batch_norm import list_batch_norm_buffers
from tf_impl.convolution import patch_grouped_convolutions
from tf_impl.described_dropout import disable_dropout, explain_inputs, find_dropouts, seed_generators
from tf_impl.described_gradients import DifferentiatedModel
from tf_impl.described_layers import describe_layers, describe_variable
from tf_impl.described_state import find_restricted, get_state, read_state, set_state, view_state
from tf_impl.float64 import compute_in_float64, keep_float64
from tf_impl.forward_trace import ForwardTrace
from tf_impl.input_adapter import build_input_adapter
from tf_impl.keras_two import KerasTwoModel, build_user_model
from tf_impl.nested_tensors import name_tensors
from tf_impl.sampled_losses import compute_losses
from tf_impl.traced_step import has_random_operations, trace_model
from tf_impl.unsupported import find_unsupported


class DescribedModel(DifferentiatedModel):
    """The model that a user's factory returns, and the inputs for its forward passes."""

    def __init__(
        self,
        key: str,
        factory: str,
        arguments: Mapping[str, object],
        inputs: Mapping[str, InputSpec],
        arrays: Mapping[str, np.ndarray],
        seed: int,
    ) -> None:
        """Build the model.

        Args:
            key: The config key that names the factory; errors begin with it.
            factory: The user's factory as module:function.
            arguments: The factory's keyword arguments.
            inputs: The inputs of the model by name.
            arrays: The values of the inputs by name.
            seed: The seed of the initial weights.

        Raises:
            UserError: The factory or the model's forward pass failed.
        """
        self.key, self.factory = key, factory
        compute_in_float64()
        patch_grouped_convolutions()
        keras.utils.clear_session(free_memory=False)  # the numbers in names of layers start again
        keras.utils.set_random_seed(seed)
        with keep_float64():
            self.model = model = build_user_model(key, factory, arguments)
        self.checksums: dict[str, int] = {}  # of the variables before the last pass of `compute`
        self.buffers: dict[str, bool] = {}  # `ModelDescription.buffers`, set by `describe`
        self.unused: set[str] | None = None  # the parameters that `describe` has found to be unused; None if unknown
        self.inputs = {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
        self.has_channels = any(model_input.channels for model_input in inputs.values())
        self.any_batch_size = any(0 in model_input.open_axes for model_input in inputs.values())
        self.adapt_inputs = build_input_adapter(key, model, list(inputs))
        self.outputs = self._call(training=False)  # layers create their variables at the first call
        self.had_random_operations = trace_model(f"{key}={factory}", self._compute, inputs, self.inputs)
        self.noises, self.other_dropouts = find_dropouts(model)
        disable_dropout(model, self.noises)

    def describe(self) -> ModelDescription:
        """Describe the layers that a forward pass enters, and the variables."""
        tf.config.run_functions_eagerly(True)  # a traced tf.function would not enter its layers again
        before = read_state(self.model)
        with ForwardTrace(self.model) as trace:
            self._call(training=False)
        changed_in_evaluation = find_changes(before, view_state(self.model))
        before |= changed_in_evaluation
        count = len(next(iter(self.inputs.values())))
        training = observe_training(partial(self._compute_training, before), count, list_batch_norm_buffers(self.model))
        self.buffers = training.buffers
        created = get_state(self.model).keys() - before.keys()
        restricted = find_restricted(self.model, before, lambda: self._call(training=True))
        del before  # it takes as much memory as the model
        outputs = {name: tensor.numpy() for name, tensor in self.outputs.items()}
        mixing_layer = self._find_mixing_layer(BatchPass(outputs, trace.calls))
        gradients = BatchGradients() if mixing_layer else observe_gradients(self, outputs)
        self.unused = gradients.unused
        tensors = self._get_variables()
        noise_names = {id(layer): name for name, layer in layers_by_path(self.model).items() if name in self.noises}
        noisy_layers = {path: layer for path, layer in trace.entered.items() if id(layer) in noise_names}
        layers = describe_layers(trace, {id(variable): name for name, variable in tensors.items()})
        used = {name for layer in layers for name in layer.variables.values()}
        moving_statistics = {
            name for layer in layers for role, name in layer.variables.items() if role.startswith("moving_")
        } - self.buffers.keys()
        changed_statistics = {name: tuple(tensors[name].shape) for name in moving_statistics & training.changed}
        return ModelDescription(
            layers=layers,
            variables={
                name: describe_variable(name, variable, name in moving_statistics or name in self.buffers)
                for name, variable in tensors.items()
            },
            unused=[name for name in tensors if name not in used],
            has_channels=self.has_channels,
            outputs={name: tuple(tensor.shape) for name, tensor in self.outputs.items()},
            probabilities=list_probabilities(outputs),
            statistics=sorted(moving_statistics),
            norms_of_single_values=find_norms_of_single_values(layers, trace.calls, changed_statistics, count),
            dropouts={
                path: DropoutDescription(
                    self.noises[name], name, trace.counts[path], trace.unflattened_shapes.get(path)
                )
                for path, layer in noisy_layers.items()
                if (name := noise_names[id(layer)])
            },
            buffers=self.buffers,
            unaligned_noise=[
                *self.other_dropouts,
                *explain_inputs(noisy_layers, trace.calls, count),
                *training.random_layers,
            ],
            unsupported=[
                *training.stateful,
                *find_unsupported(self.model, self.buffers, sorted(changed_in_evaluation), sorted(created)),
            ],
            restricted=[name for name in restricted if name not in self.buffers],
            mixing_layer=mixing_layer,
            mixed_gradient=gradients.mixed,
            is_keras_two=isinstance(self.model, KerasTwoModel),
        )

    def find_unused(self, description: ModelDescription, seed: int) -> set[str]:
        """Return the names of the trained variables that no output depends on."""
        return find_unused(self, description, seed) if self.unused is None else self.unused

    def list_files(self) -> list[str]:
        """Return the paths of the user's source files that the model and the loss function depend on."""
        return list_user_files()

    def weights(self, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Return copies of variables by name; of all of them if `names` is None."""
        variables = self._get_variables().items()
        return {name: variable.numpy() for name, variable in variables if names is None or name in names}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set variables by name."""
        set_state(self.model, weights)

    def changed_weights(self) -> dict[str, np.ndarray]:
        """Return copies of the variables that the last pass of `compute` changed, by name."""
        checksums = compute_checksums(view_state(self.model))
        return self.weights({name for name, checksum in checksums.items() if self.checksums.get(name) != checksum})

    def read_checkpoint(self, path: str) -> dict[str, np.ndarray]:
        """Return the variables of a Keras checkpoint. Raise UserError if the model cannot load it."""
        before = self.weights()
        unread = {name: np.full_like(array, UNREAD) for name, array in before.items() if is_floating(array)}
        set_state(self.model, unread)
        try:
            self.model.load_weights(path)
        except Exception as error:
            raise UserError(
                f"model.checkpoint={path}: cannot be read ({describe_error(error)}); save it with model.save_weights"
            ) from error
        finally:
            weights = self.weights()
            set_state(self.model, before)
        check_all_read(path, weights)
        return weights

    def compute_losses(self, task: TaskSettings, output: str, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the losses of the examples by kind, such as "float32". Raise UserError if the loss function fails.

        Args:
            task: The settings of the task.
            output: The name of the output that the task uses.
            labels: The labels of the examples.
        """
        return compute_losses(task, self.outputs[output], labels, self.any_batch_size)

    def compute(
        self, weights: Mapping[str, np.ndarray], training: bool, replacements: Mapping[str, RecordedCall] | None = None
    ) -> ComputedPass:
        """Compute a forward pass.

        Args:
            weights: The variables to set before the pass, by name.
            training: Whether the model is in training mode.
            replacements: The calls of the counterparts of this model's layers in the other model, by path. The layers
                then compute on the inputs and outputs of the counterparts.

        Returns:
            The outputs, and the shapes of the inputs of layers.
        """
        self.last_gradients = {}
        set_state(self.model, weights)
        self.checksums = compute_checksums(view_state(self.model))
        with ForwardTrace(self.model, replacements) as trace, tf.GradientTape() as self.tape:
            self.last_outputs = self._call(training)
        self.last_calls = trace.calls
        arrays = {name: tensor.numpy() for name, tensor in self.last_outputs.items()}
        return ComputedPass(arrays, list_received_shapes(trace.calls))

    def calls(self, paths: Sequence[str] | None = None) -> dict[str, RecordedCall]:
        """Return the calls of layers in the last pass by path; of all layers if `paths` is None."""
        return {path: call for path, call in self.last_calls.items() if paths is None or path in paths}

    def _compute_training(self, before: Arrays, seed: int, rows: slice) -> ObservedPass:
        """Seed all random generators, compute a training pass on some examples, and restore the variables."""
        batch = self.inputs
        self.inputs = {name: tensor[rows] for name, tensor in batch.items()}
        seed_generators(self.model, seed)
        generators = read_python_generators()
        try:
            with ForwardTrace(self.model) as trace:
                self._call(training=True)
        finally:
            self.inputs = batch
            changed = find_changes(before, view_state(self.model))
            set_state(self.model, {name: before[name] for name in changed})
        has_drawn = read_python_generators() != generators or self._has_random_operations
        return ObservedPass(trace.calls, trace.noise, changed, has_drawn)

    @cached_property
    def _has_random_operations(self) -> bool:
        """Return whether the model still draws random numbers when its dropout is disabled."""
        return self.had_random_operations and has_random_operations(self._compute, self.inputs)

    def _find_mixing_layer(self, batch_pass: BatchPass) -> str | None:
        """Compute a batch of copies of one example. Return the first layer that mixes examples, or None.

        Args:
            batch_pass: A pass on all examples, in evaluation mode.
        """
        batch = self.inputs
        self.inputs = {name: tf.gather(x, [choose_example(len(x))] * len(x)) for name, x in batch.items()}
        with ForwardTrace(self.model) as trace_of_copies:
            outputs = self._call(training=False)
        self.inputs = batch
        arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        return find_mixing_layer(batch_pass, BatchPass(arrays, trace_of_copies.calls))

    def _get_variables(self) -> dict[str, keras.Variable]:
        """Return the floating-point variables, and the variables that training changes, by path."""
        variables = get_state(self.model).items()
        return {path: variable for path, variable in variables if "float" in variable.dtype or path in self.buffers}

    def _compute(self, inputs: dict[str, tf.Tensor], training: bool) -> object:
        """Call the user's model and return its outputs as they are."""
        args, kwargs = self.adapt_inputs(inputs)
        with keep_float64():
            return self.model(*args, **kwargs, **get_training_argument(self.model, training))

    def _call(self, training: bool) -> dict[str, tf.Tensor]:
        """Return the outputs by name. Raise UserError if the user's forward pass fails or has no usable output."""
        try:
            returned = self._compute(self.inputs, training)
        except Exception as error:
            raise UserError(f"{self.key}={self.factory}: its forward pass raised {describe_error(error)}") from error
        outputs = name_tensors(returned)
        if not any(tensor.dtype.is_floating for tensor in outputs.values()):
            raise UserError(f"{self.key}={self.factory}: its forward pass returned no floating-point tensor")
        return outputs
