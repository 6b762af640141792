"""A user's module in float64: a description of its layers, and its outputs and gradients, for common.map.

common.map pairs the variables of a user's PyTorch model with the variables of the user's Keras model, and checks that
both models compute the same. The path of a layer is its name in the model.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np
import torch

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
from common.map.mixed_examples import BatchGradients, BatchPass, choose_example, find_mixing_layer, observe_gradients
from common.map.random_layers import observe_training
from common.map.single_values import find_norms_of_single_values
from common.map.unused_variables import find_unused
from torch_impl.attention import UnfoldedAttention, set_dropout_batch_first, unfold_attention
from torch_impl.batch_norm import list_batch_norm_buffers
from torch_impl.described_dropout import (
    disable_dropout,
    explain_inputs,
    find_dropouts,
    read_generators,
    seed_generators,
)
from torch_impl.described_gradients import DifferentiatedModel
from torch_impl.described_layers import describe_layers, describe_variable
from torch_impl.described_state import find_restricted, get_state, read_state, set_state, view_state, view_tensor
from torch_impl.float64 import compute_in_float64, keep_float64
from torch_impl.forward_trace import ForwardTrace
from torch_impl.input_adapter import build_input_adapter
from torch_impl.keras_backend import build_module
from torch_impl.keras_module import KerasModule
from torch_impl.nested_tensors import name_tensors
from torch_impl.sampled_losses import compute_losses
from torch_impl.state_dict import find_aliases, read_state_dict
from torch_impl.unsupported import find_unsupported


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
        torch.backends.mha.set_fastpath_enabled(False)  # the fast path would not call the layers
        compute_in_float64()
        self.model = model = build_module(key, factory, arguments, seed).double()
        self.checksums: dict[str, int] = {}  # of the variables before the last pass of `compute`
        self.buffers: dict[str, bool] = {}  # `ModelDescription.buffers`, set by `describe`
        self.unused: set[str] | None = None  # the parameters that `describe` has found to be unused; None if unknown
        self.inputs = {name: torch.from_numpy(arrays[name]) for name in inputs}
        self.is_keras = isinstance(model, KerasModule)
        channels = [name for name, model_input in inputs.items() if model_input.channels and not self.is_keras]
        self.has_channels = bool(channels)
        self.adapt_inputs = build_input_adapter(key, model, list(inputs), channels)
        with torch.no_grad():
            self.outputs = self._call(training=False)  # lazy layers create their parameters at the first call
        unfold_attention(model, UnfoldedAttention)
        set_dropout_batch_first(model)
        self.noises, self.other_dropouts = find_dropouts(model)
        disable_dropout(model, self.noises)

    def describe(self) -> ModelDescription:
        """Describe the layers that a forward pass enters, and the variables."""
        before = read_state(self.model)
        with ForwardTrace(self.model) as trace, torch.no_grad():
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
        noisy_layers = {path: layer for path, layer in trace.entered.items() if path in self.noises}
        tensors = self._get_variables()
        layers = describe_layers(trace, {id(tensor): name for name, tensor in tensors.items()})
        used = {name for layer in layers for name in layer.variables.values()}
        prefix = "moving_" if self.is_keras else "running_"
        moving_statistics = {
            name for layer in layers for role, name in layer.variables.items() if role.startswith(prefix)
        } - self.buffers.keys()
        changed_statistics = {name: tuple(tensors[name].shape) for name in moving_statistics & training.changed}
        mixing_layer = self._find_mixing_layer(BatchPass(outputs, trace.calls))
        gradients = BatchGradients() if mixing_layer else observe_gradients(self, outputs)
        self.unused = gradients.unused
        return ModelDescription(
            layers=layers,
            variables={
                name: describe_variable(name, tensor, name in moving_statistics or name in self.buffers)
                for name, tensor in tensors.items()
            },
            unused=[name for name in tensors if name not in used],
            has_channels=self.has_channels,
            outputs={name: tuple(tensor.shape) for name, tensor in self.outputs.items()},
            probabilities=list_probabilities(outputs),
            statistics=sorted(moving_statistics),
            norms_of_single_values=find_norms_of_single_values(layers, trace.calls, changed_statistics, count),
            dropouts={
                path: DropoutDescription(
                    self.noises[path], path, trace.counts[path], trace.unflattened_shapes.get(path)
                )
                for path in noisy_layers
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
            is_keras=self.is_keras,
            aliases=find_aliases(self.model),
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
        return {name: view_tensor(x).copy() for name, x in variables if names is None or name in names}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set variables by name."""
        set_state(self.model, weights)

    def changed_weights(self) -> dict[str, np.ndarray]:
        """Return copies of the variables that the last pass of `compute` changed, by name."""
        checksums = compute_checksums(view_state(self.model))
        return self.weights({name for name, checksum in checksums.items() if self.checksums.get(name) != checksum})

    def read_checkpoint(self, path: str) -> dict[str, np.ndarray]:
        """Return the floating-point tensors of a state dict. Raise UserError if the file has none."""
        tensors = read_state_dict(f"model.checkpoint={path}", path)
        return {name: tensor.double().numpy() for name, tensor in tensors.items() if tensor.is_floating_point()}

    def compute_losses(self, task: TaskSettings, output: str, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the losses of the examples by kind, such as "float32". Raise UserError if the loss function fails.

        Args:
            task: The settings of the task.
            output: The name of the output that the task uses.
            labels: The labels of the examples.
        """
        return compute_losses(task, self.outputs[output], labels)

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
        with ForwardTrace(self.model, replacements) as trace:
            self.last_outputs = self._call(training)
        self.last_calls = trace.calls
        arrays = {name: tensor.detach().numpy() for name, tensor in self.last_outputs.items()}
        return ComputedPass(arrays, list_received_shapes(trace.calls))

    def calls(self, paths: Sequence[str] | None = None) -> dict[str, RecordedCall]:
        """Return the calls of layers in the last pass by path; of all layers if `paths` is None."""
        return {path: call for path, call in self.last_calls.items() if paths is None or path in paths}

    def _compute_training(self, before: Arrays, seed: int, rows: slice) -> ObservedPass:
        """Seed all random generators, compute a training pass on some examples, and restore the variables."""
        batch = self.inputs
        self.inputs = {name: tensor[rows] for name, tensor in batch.items()}
        seed_generators(self.model, seed)
        before_drawing = read_generators(self.model)
        try:
            with ForwardTrace(self.model) as trace, torch.no_grad():
                self._call(training=True)
            has_drawn = read_generators(self.model) != before_drawing
        finally:
            self.inputs = batch
            changed = find_changes(before, view_state(self.model))
            set_state(self.model, {name: before[name] for name in changed})
        return ObservedPass(trace.calls, trace.noise, changed, has_drawn)

    def _find_mixing_layer(self, batch_pass: BatchPass) -> str | None:
        """Compute a batch of copies of one example. Return the first layer that mixes examples, or None.

        Args:
            batch_pass: A pass on all examples, in evaluation mode.
        """
        batch = self.inputs
        self.inputs = {name: tensor[[choose_example(len(tensor))] * len(tensor)] for name, tensor in batch.items()}
        with ForwardTrace(self.model) as trace_of_copies, torch.no_grad():
            outputs = self._call(training=False)
        self.inputs = batch
        arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        return find_mixing_layer(batch_pass, BatchPass(arrays, trace_of_copies.calls))

    def _get_variables(self) -> dict[str, torch.Tensor]:
        """Return the floating-point parameters and buffers, and the buffers that training changes, by name.

        Call this method before every use, because a forward pass may replace a buffer by another tensor.
        """
        return {
            name: tensor
            for name, tensor in get_state(self.model).items()
            if tensor.is_floating_point() or name in self.buffers
        }

    def _call(self, training: bool) -> dict[str, torch.Tensor]:
        """Return the outputs by name. Raise UserError if the user's forward pass fails or has no usable output."""
        self.model.train(training)
        try:
            args, kwargs = self.adapt_inputs(self.inputs)
            with keep_float64():
                returned = self.model(*args, **kwargs)
        except Exception as error:
            raise UserError(f"{self.key}={self.factory}: its forward pass raised {describe_error(error)}") from error
        outputs = name_tensors(returned)
        if not any(tensor.is_floating_point() for tensor in outputs.values()):
            raise UserError(f"{self.key}={self.factory}: its forward pass returned no floating-point tensor")
        return outputs
