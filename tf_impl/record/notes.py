"""Sentences of a record about what a recorder could not see, and what to add to see it."""

from __future__ import annotations

from collections.abc import Mapping

from tf_impl.record.step import Step

FAILED = "Step {}: the recorder failed ({}: {}), and the record ends before this step."
NO_STEP = (
    "The script ended before a whole optimizer step was recorded: no update was seen. If the step uses another "
    "optimizer than that of compile, as in a GAN, pass it: FitRecorder(..., optimizer=...)."
)
NO_REHEARSAL = (
    "Step {}: the step could not be computed beside the training ({}), so that its batch, layers and loss are missing: "
    "keep the step free of side effects, or call the model within recorder.step() outside of a tf.function."
)
NO_MODEL_CALL = (
    "The model was not called in a recorded step, so that its inputs and layers are missing: "
    "pass the model that the step calls to the recorder."
)
MODEL_TWICE = (
    "The model is called {} times before the gradients are computed: the layers of the first call are recorded, and "
    "the inputs and outputs of all calls."
)
PARTS = (
    "The step calls layers of the model ({}) instead of the model: the inputs of the first one and the outputs of the "
    "last one are recorded; call the model itself to record its own."
)
EAGER_PARTS = (
    "The step runs eagerly and calls layers of the model instead of the model: call the model itself, or put the step "
    "into a tf.function, to follow another record."
)
NO_GRADIENTS = (
    "The gradients were not seen: compute them with tf.GradientTape, and pass them to the optimizer of the recorder."
)
NO_OPERATIONS = "operations: they were not seen ({}), so that lines of the script are not compared."
NO_NUMBERS = "The tensor {} has the type {} and is not recorded: pass the numbers that the script makes of it."
NO_LOSS = (
    "The loss function was not seen: use an object or a function of keras.losses, such as "
    "keras.losses.MeanSquaredError()."
)
OTHER_OPTIMIZERS = (
    "The recorded optimizer does not receive the gradients of {} and others, {} in all: other optimizers may update "
    "these variables; their settings are not recorded."
)
COMPUTED_GRADIENTS = (
    "The slots of {} do not imply the gradients: gradient/NAME was computed eagerly beside the step, from its batch."
)
DIFFERENT_RESULTS = (
    "Step {}: the step computed beside the training returned other values than the real one "
    "(they differ by {:.1e}), as with random functions that keep no state in variables: "
    "its layers and loss are not exact."
)
DIFFERENT_GRADIENTS = (
    "Step {}: the gradients that the batch and the loss give differ from those that the update used by {:.1e} of their "
    "norm: see gradient/NAME, and gradient_unclipped/NAME or the factor in clip_factors."
)
CLIPPED_PARTS = (
    "The script clips the gradients of each micro-batch, and not their sum: see gradient/NAME for what the optimizer "
    "received."
)
SEVERAL_UPDATES = "Step {}: the optimizer updated {} times: put one update into each recorder.step()."
SEVERAL_EXECUTIONS = (
    "steps_per_execution={} computes several steps at once, which cannot be separated: "
    "compile the model with steps_per_execution=1 to record it."
)
MAX_MICRO_BATCHES = 64  # contexts without an update, after which the recorder gives up
NO_UPDATE = "{} calls of recorder.step() without an update: put recorder.step() around the optimizer's update."
NO_TRAIN_FUNCTION = (
    "The model has no train_function that takes an iterator of tf.data: use a Recorder in your own loop."
)
NO_OPTIMIZER = (
    "The model was compiled without a Keras optimizer: pass that of its train_step to FitRecorder(..., optimizer=...)."
)


def list_step_notes(step: Step, has_loss: bool, omitted: Mapping[str, str]) -> list[str]:
    """Return the sentences about what was not seen of a step.

    Args:
        step: The step.
        has_loss: Whether a loss function was seen.
        omitted: The types of tensors that a record cannot hold, by name.
    """
    calls = max((len(batch.calls) for batch in step.micro_batches), default=0)
    observed = [call for batch in step.micro_batches for call in batch.calls]
    parts = ", ".join(dict.fromkeys(name for call in observed for name in call.parts))
    sentences = {
        NO_MODEL_CALL: calls == 0,
        PARTS.format(parts): bool(parts),
        MODEL_TWICE.format(calls): calls > 1,
        NO_GRADIENTS: not any([*step.received.values(), *step.list_tape_gradients()]),
        NO_LOSS: not has_loss,
    }
    unknown = [NO_NUMBERS.format(name, dtype) for name, dtype in omitted.items()]
    return [sentence for sentence, is_missing in sentences.items() if is_missing] + unknown
