"""Remedies: what to do about each cause of a difference between two training runs.

docs/diagnosis.md has the same table, and says what each cause means. Both follow the order of training: data, weights,
layers, loss, gradients, updates, evaluation.
"""

from common.diagnose.findings import Cause

# Remedy by names of causes
REMEDY_GROUPS = {
    ("other_examples", "order_of_examples"): "use the same `train.seed` and the same data files on both sides",
    ("other_inputs_of_call", "some_examples"):
        "compare what both scripts pass to the model in this call: do they draw random numbers?",
    ("output_of_call",): "use the same mode, such as `model.train()` or `training=True`, for each call in both scripts",
    ("other_state_of_loss",):
        "compare what the loss depends on besides the model: a target network, a queue, a schedule",
    ("input_as_label",): "pass the same array to the loss function in both scripts",
    ("made_labels",): "give the real and the fake examples the same labels in both scripts",
    ("order_between_calls",): "pass the examples that belong together in the same rows of both calls",
    ("number_of_calls",): "call the model equally often in both scripts, on the same examples",
    ("epoch_not_reshuffled",): "call `DistributedSampler.set_epoch` in every epoch",
    ("other_data",): "use the same data files on both sides",
    ("transform",): "use the same versions of NumPy and Pillow and the same module of the transform on both sides",
    ("batch_size", "missing_array", "shape"): "pass the same arrays, with the same shapes, to both sides",
    ("examples_swapped", "reversed", "order_of_values", "inverted", "array_of_zeros", "array_of_ones",
     "scaled_inputs", "other_values"):
        "prepare the data in the same way on both sides",
    ("truncation_side", "padding_side", "renumbered"): (
        "compare `truncation_side`, `padding_side`, vocabulary and lower case of the tokenizers, and the order of the "
        "classes"
    ),
    ("missing_layer",): "add the layer to the model that lacks it, or remove it from the model that has it",
    ("layer_sizes",): "give both layers the same numbers of units, filters and groups",
    ("other_sizes",): "give the layers of both models the same sizes, or pair them by map=FILE",
    ("missing_parameter", "transposed_kernel", "swapped_weights", "other_weights"):
        "compare the parameter map and the checkpoint",
    ("gate_order", "block_order"): (
        "correct the code that copies the weights, or the cell: the gates of an LSTM are i, f, g, o in both "
        "frameworks, those of a GRU are r, z, n in PyTorch and z, r, h in Keras"
    ),
    ("time_axis",): "pass `batch_first=True` to PyTorch's recurrent layers and attentions, or transpose their inputs",
    ("activation",): "set the activation explicitly on both sides: Keras's `gelu` is exact, KerasHub's BERT uses tanh",
    ("computed_in_tf32", "computed_in_bfloat16", "computed_in_float16", "computed_in_float32"):
        "look for casts in the layer, for its `dtype`, and for autocast",
    ("own_epsilon",): "set the same epsilon in the layers that both scripts define",
    ("state_not_carried",): "pass the states that the model returns to its next call, in both scripts",
    ("state_not_reset",): "set the states of examples that begin anew, such as new sessions, to zero in both scripts",
    ("added_variables",):
        "PyTorch's LSTM adds two biases, which are both trained: train one of them only, or accept the difference",
    ("epsilon",): (
        "set the same epsilon on both sides: the default of a normalization is 1e-3 in Keras and 1e-5 in PyTorch, "
        "the default of Adam 1e-7 in Keras and 1e-8 in PyTorch"
    ),
    ("attention_scale", "attention_mask", "attention_order", "attention_heads"): "compare the code of the attention",
    ("attention_softmax", "softmax_axis"):
        "pass the same axis to softmax on both sides: channels are the second axis in PyTorch and the last in Keras",
    ("vector_function",): (
        "normalize, squash or standardize the same vectors on both sides: channels are the second axis in PyTorch and "
        "the last in Keras"
    ),
    ("pooling",): "use the same pooling on both sides",
    ("same_padding_at_strides",): 'pad with `ZeroPadding2D` and use `padding="valid"`',
    ("padding_position",):
        "pad the same number of elements at the same ends on both sides, as `F.pad` and `ZeroPadding2D` do",
    ("cropping_position",): (
        "in Keras, use `padding=\"valid\"` and crop `padding` elements at the start and `padding - output_padding` at "
        "the end (PyTorch's arguments)"
    ),
    ("layer_order", "gate"): "compare the order of the layers in the block, and what multiplies their outputs",
    ("joined_order", "reshape_order", "flatten_order"): (
        "join and reshape arrays in the same order on both sides: channels are the second axis in PyTorch and the "
        "last in Keras"
    ),
    ("residual", "addition", "constant_term", "reversed_axis", "scale"): (
        "compute the same sum, in the same order and with the same factors, on both sides: residual connections, "
        "embeddings of positions, `flip`, `go_backwards` and the scale of inputs"
    ),
    ("shifted_indices", "other_indices"): "compute the same positions or token ids on both sides",
    ("not_finite",):
        "look for a mask value or an epsilon that the precision cannot hold, and for an overflow of float16",
    ("lower_precision",): "compute normalizations, softmax and sums in float32",
    ("double_softmax", "double_sigmoid"): "pass logits to a loss that takes logits, without a softmax or sigmoid",
    ("label_smoothing", "broadcast_in_loss", "scaled_loss", "mean_instead_of_losses", "loss_function"):
        "compare the loss functions: each returns one loss for each example",
    ("added_backward_pass",): "detach the outputs of the model from which the other loss is computed",
    ("not_trained", "no_gradient", "padding_row", "scaled_gradient", "transposed_gradient", "gradient"):
        "look for frozen layers, `padding_idx`, `stop_gradient` and `detach`",
    ("tied_on_one_side",): "tie the output's weight to the embedding on both sides",
    ("averaged_twice", "not_averaged", "missing_gradient", "mean_of_means", "stale_gradient", "reduction"):
        "reduce the gradients once: DDP already averages them, Keras sums them; weight the losses accordingly",
    ("reduced_in_bfloat16", "reduced_in_float16", "reduced_in_float32"):
        "look for a compression in the strategy, such as `strategy.comm_hook`",
    ("not_clipped", "clipped_per_variable", "clipped_before_reduction", "clipped_by_value", "clipping"):
        "clip the reduced gradients in the same way: Keras's `clipnorm` is per variable, `global_clipnorm` is not, and "
        "`clipvalue` clips each element",
    ("clipped_per_row", "clipping_norm"): (
        "clip the same array on both sides: Keras clips the rows of a sparse gradient before it adds the rows of one "
        "index; add them first with `tf.convert_to_tensor`"
    ),
    ("changed_gradients", "used_gradients"):
        "compare what both scripts do to the gradients between the backward pass and the update",
    ("decay_before_clipping",): "add the weight decay after the clipping in both scripts, as an optimizer does",
    ("weight_decay_coupled", "no_weight_decay", "weight_decay", "weight_decay_on_biases", "weight_decay_twice",
     "weight_decay_without_rate", "l2_counted_twice", "l2_in_loss"): (
        "set the weight decay, and which parameters decay, on both sides: the default of AdamW is 0.004 in Keras and "
        "0.01 in PyTorch"
    ),
    ("decay_in_loss",): "leave the penalty out of the loss that you report, or set the weight decay in one place",
    ("optimizer_state_lost",): "restore the optimizer's state together with the weights",
    ("epsilon_place", "bias_correction", "beta2", "rate_inside_velocity", "repeated_indices", "second_moment",
     "optimizer", "not_updated"):
        "compare the optimizers' formulas; in runs, use `optimizer.semantics=aligned`",
    ("learning_rate_scaled", "learning_rate_divided", "learning_rate_root", "schedule_late", "schedule_early",
     "no_schedule"):
        "use the same schedule on both sides",
    ("biased_variance",):
        "compare the variance: Keras divides by n, PyTorch by n - 1, and Lockstep by n - 1 on both sides",
    ("moving_statistics",): "compare the momentum: Keras's is 1 - PyTorch's",
    ("dropout_masks",): "use `model.dropout_semantics=aligned`",
    ("same_masks_in_all_steps", "same_masks_on_all_ranks"):
        "draw the masks from a seed that depends on the step and the rank",
    ("asynchronous",): "set `strategy.max_staleness=0`, or expect another curve",
    ("examples_not_evaluated", "evaluation"): "evaluate all examples, including a last, smaller batch",
    # Causes that only the diagnosis of recorded scripts reports
    ("precision",): "set the same precision, TF32 and autocast in both scripts",
    ("environment",): "use the same versions, device and flags on both sides, or expect this difference",
    ("learning_rate", "schedule", "scheduler_stepped_twice", "scheduler_per_micro_batch",
     "updates_per_schedule_step", "schedule_restarted"):
        "use one learning rate and one schedule, and step the scheduler once after each update",
    ("betas", "momentum", "nesterov", "dampening", "centered", "amsgrad", "beta2_decay", "clip_threshold",
     "ns_steps", "rate_adjustment"):
        "set the hyperparameter to the same value in both optimizers",
    ("rho", "initial_accumulator_value", "momentum_decay"): (
        "set the hyperparameter on both sides: RMSprop's rho is 0.9 in Keras and 0.99 in PyTorch (`alpha`); Adagrad's "
        "sum begins with 0.1 in Keras and 0 in PyTorch; Keras's Nadam is PyTorch's with `momentum_decay=1`"
    ),
    ("missing_in_optimizer",): "create the optimizer after the last layer, and pass it all parameters",
    ("evaluation_mode", "dropout_rate"):
        "put the same layers into training mode: `model.train()`, `training=True`, and `eval()` for layers that the "
        "other script freezes; set the same dropout rates",
    ("step_skipped", "not_unscaled", "clipped_before_unscaling"):
        "call `scaler.unscale_` before clipping, and compare the scale at the start",
    ("attention_mask_missing", "special_tokens", "padding_length", "truncation_length"):
        "compare the arguments of the tokenizer, and pass its attention mask to the model",
    ("padded_examples",): "mask the padding in both scripts, and take the state or the output of the last real token",
    ("go_backwards",): "let both layers go through the sequence in the same direction",
    ("labels_transposed",): "flatten the outputs and the labels in the same order of the axes",
    ("labels_shifted",): "number the labels from the same number, and cut inputs and labels at the same positions",
    ("normalization", "channel_order", "prepared_differently"):
        "compare mean, standard deviation, RGB or BGR, resizing and antialiasing",
    ("scaled_weights",): "compare the initializers, or load one checkpoint in both scripts",
    ("batch_statistics",): "use batches of one size, or `SyncBatchNorm`",
    ("from_logits",): "set `from_logits=True` if the model has no softmax",
    ("loss_reduction", "ignored_labels", "class_weights"):
        "use the same reduction, ignored labels and class weights in both loss functions",
    ("loss_weight", "missing_loss_term", "loss_terms"): "add the same losses, with the same weights, in both scripts",
    ("zero_grad_missing", "dropped_micro_batches", "update_without_backward"): "call `zero_grad` once for each update",
    ("accumulation_not_divided", "accumulation_divided_twice"):
        "divide the loss of each micro-batch by the number of micro-batches, once",
    ("accumulation_steps",): "use the same number of micro-batches for an update",
    ("sampler_padding", "last_batch_dropped", "repeated_batch"):
        "use the same `drop_last`, and draw a new batch for each step",
    ("weights_changed",): "evaluate averaged weights in a copy of the model",
    ("clipped_weights",): "clip the weights of both scripts to the same bounds after each update, or those of neither",
    ("averaged_weights",): "use the same factor in both averages, and average at the same place of the step",
    ("not_reduced",): "wrap the model in DistributedDataParallel, and call the wrapper",
}  # fmt: skip
REMEDIES = {cause: remedy for causes, remedy in REMEDY_GROUPS.items() for cause in causes}
# Causes without a remedy: the report only shows at which place the sides differ
WITHOUT_REMEDY = (
    "operation",
    "missing_operation",
    "added_operation",
    "unused_input",
    "stopped_gradient",
    "code_between_layers",
    "layer",
    "recurrent_layer",
    "bias_ignored",
    "shape_of_outputs",
    "training_mode",
)
# Remedy by stage, for causes that are named after a config key, an argument of a layer, or a loss formula
STAGE_REMEDIES = {
    "config": "set the key to the same value on both sides",
    "hyperparameters": "set the hyperparameter to the same value in both scripts",
    "activations": "set the argument to the same value in both layers",
    "activations in training mode": "set the argument to the same value in both layers",
    "loss": REMEDIES["loss_function"],
}


def find_remedy(cause: Cause) -> str | None:
    """Return the remedy of a cause, or None if the cause has no remedy."""
    if cause.cause in WITHOUT_REMEDY:
        return None
    return REMEDIES.get(cause.cause, STAGE_REMEDIES.get(cause.stage))
