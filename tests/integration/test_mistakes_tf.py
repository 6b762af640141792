"""Mistakes in copies of the scripts of TensorFlow and Keras: the diagnosis of the records names each, and nothing else.

The mistakes come from reports in public trackers.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from tests.conftest import in_matrix
from tests.edited_scripts import edit_script, run_script

# Two devices for MirroredStrategy, before the first test of any file of this process initializes TensorFlow
with contextlib.suppress(RuntimeError):
    CPU = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

FIT, LOOP, MIRRORED = "keras_fit.py", "tf_loop.py", "tf_loop_mirrored.py"
Edits = Mapping[str, str]


@dataclass(frozen=True)
class Mistake:
    """A mistake in a script.

    Attributes:
        script: The script.
        edits: New texts by old texts, which make the mistake.
        cause: Stage and name of the cause that must be named first.
        base: Edits of both copies.
        consequences: Other causes that may be named.
    """

    script: str
    edits: Edits
    cause: str
    base: Edits = field(default_factory=dict)
    consequences: tuple[str, ...] = ()


# In both copies: collective operations of one process cannot change their shapes from script to script
BASES: dict[str, Edits] = {
    FIT: {"validation_data=(x_val, y_val), ": "", "epochs=2": "epochs=1", "range(2)": "range(1)"},
    LOOP: {"range(2)": "range(1)"},
    MIRRORED: {'["CPU:0", "CPU:1"]': '["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()'},
}
LOGITS = "SparseCategoricalCrossentropy(from_logits=True"
STEP = "loss_function(y, model(x, training=True))"
IMAGES = "x, y = draw_images(80, seed=0)\n"
AVERAGE = "tf.nn.compute_average_loss(losses, global_batch_size=16)"
CLIP = "        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)\n"
UNCLIPPED = "        optimizer.apply_gradients("
SMALL_CLIP = CLIP.replace("1.0", "0.2")
DECAY = "        gradients = [tf.identity(g) + 0.1 * v for g, v in zip(gradients, model.trainable_variables)]\n"
POLICY = "    keras.utils.set_random_seed(42)"
MISTAKES = {
    "from_logits forgotten": Mistake(LOOP, {LOGITS: "SparseCategoricalCrossentropy("}, "loss from_logits"),
    "label smoothing": Mistake(
        LOOP,
        {
            LOGITS: "CategoricalCrossentropy(from_logits=True, label_smoothing=0.1",
            STEP: STEP.replace("y, ", "tf.one_hot(y, 3), "),
        },
        "hyperparameters label_smoothing",
    ),
    "sum of losses": Mistake(LOOP, {LOGITS: f'{LOGITS}, reduction="sum"'}, "hyperparameters loss_reduction"),
    "penalty not counted": Mistake(
        LOOP,
        {" + sum(model.losses)": ""},
        "loss l2_in_loss",
        {"layers.Dense(3)": 'layers.Dense(3, kernel_regularizer="l2")', STEP: f"{STEP} + sum(model.losses)"},
    ),
    "class weights missing": Mistake(FIT, {"{0: 1.0, 1: 2.0}": "None"}, "loss class_weights"),
    "class weights normalized": Mistake(FIT, {"{0: 1.0, 1: 2.0}": "{0: 2 / 3, 1: 4 / 3}"}, "data class_weights"),
    "weighted mean": Mistake(
        FIT,
        {
            '"sparse_categorical_crossentropy"': "keras.losses.SparseCategoricalCrossentropy("
            'reduction="mean_with_sample_weight")'
        },
        "loss class_weights",
    ),
    "L2 in the loss": Mistake(
        FIT, {"Conv2D(8, 3,": 'Conv2D(8, 3, kernel_regularizer="l2",'}, "hyperparameters l2_in_loss"
    ),
    "mean of each replica": Mistake(MIRRORED, {AVERAGE: "tf.reduce_mean(losses)"}, "gradients not_averaged"),
    "sum of each replica": Mistake(MIRRORED, {AVERAGE: "tf.reduce_sum(losses)"}, "loss loss_reduction"),
    "rate scaled by replicas": Mistake(
        MIRRORED, {"SGD(0.05,": "SGD(0.05 * strategy.num_replicas_in_sync,"}, "hyperparameters learning_rate_scaled"
    ),
    "epsilon of Adam": Mistake(LOOP, {"Adam(1e-2)": "Adam(1e-2, epsilon=1e-3)"}, "hyperparameters epsilon"),
    "weight decay left at its default": Mistake(FIT, {"weight_decay=0.01, ": ""}, "hyperparameters weight_decay"),
    "clipped per variable": Mistake(FIT, {"global_clipnorm": "clipnorm"}, "hyperparameters clipped_per_variable"),
    "clipped by value": Mistake(FIT, {"global_clipnorm": "clipvalue"}, "hyperparameters clipped_by_value"),
    "not clipped": Mistake(LOOP, {CLIP: ""}, "hyperparameters not_clipped"),
    "clipped per variable by the script": Mistake(
        LOOP,
        {SMALL_CLIP: "        gradients = [tf.clip_by_norm(g, 0.2) for g in gradients]\n"},
        "hyperparameters clipped_per_variable",
        {CLIP: SMALL_CLIP},
    ),
    "decay by the script": Mistake(
        LOOP, {CLIP: CLIP + DECAY}, "hyperparameters weight_decay", consequences=("repeated_indices",)
    ),
    "decay before clipping": Mistake(
        LOOP,
        {SMALL_CLIP + DECAY: DECAY + SMALL_CLIP},
        "hyperparameters decay_before_clipping",
        {CLIP: SMALL_CLIP + DECAY},
    ),
    "gradients masked": Mistake(
        LOOP,
        {UNCLIPPED: f"        gradients = [tf.where(g > 0, g, 0.0) for g in gradients]\n{UNCLIPPED}"},
        "hyperparameters changed_gradients",
        {CLIP: "        gradients = [tf.convert_to_tensor(g) for g in gradients]\n"},
    ),
    "rate per epoch": Mistake(
        FIT,
        {
            "CosineDecay(1e-2, decay_steps=20)": "CosineDecay(1e-2, decay_steps=20)(0).numpy().item()",
            "keras.callbacks.TerminateOnNaN()": "keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate)",
        },
        "hyperparameters no_schedule",
    ),
    "moving average of weights": Mistake(
        FIT,
        {"global_clipnorm=1.0": "global_clipnorm=1.0, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2"},
        "hyperparameters ema",
    ),
    "frozen": Mistake(
        LOOP,
        {"    mean_loss =": "    model.embedding.trainable = False\n    mean_loss ="},
        "hyperparameters not_trained",
    ),
    "training forgotten": Mistake(LOOP, {"training=True))": "training=False))"}, "hyperparameters evaluation_mode"),
    "momentum of BatchNormalization": Mistake(
        FIT, {"BatchNormalization()": "BatchNormalization(momentum=0.9)"}, "hyperparameters moving_statistics"
    ),
    "epsilon of BatchNormalization": Mistake(
        FIT, {"BatchNormalization()": "BatchNormalization(epsilon=1e-5)"}, "hyperparameters epsilon"
    ),
    "rate of dropout": Mistake(FIT, {"Dropout(0.25)": "Dropout(0.5)"}, "hyperparameters dropout_rate"),
    "images not rescaled": Mistake(FIT, {"            keras.layers.Rescaling(1 / 255),\n": ""}, "activations scale"),
    "images rescaled twice": Mistake(FIT, {IMAGES: f"{IMAGES}    x = x / 255\n"}, "data scaled_inputs"),
    "no shuffle": Mistake(FIT, {"batch_size=16": "batch_size=16, shuffle=False"}, "data order_of_examples"),
    "other seed": Mistake(FIT, {"seed(42)": "seed(43)"}, "data order_of_examples", consequences=("other_weights",)),
    "mask_zero forgotten": Mistake(LOOP, {", mask_zero=True": ""}, "hyperparameters mask_zero"),
    "mixed precision": Mistake(
        FIT,
        {POLICY: f'    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")\n{POLICY}'},
        "environment precision",
    ),
}

# A kind of mistake each; `make test-faults-all` tries all
TRIED_BY_CI = (
    "from_logits forgotten",
    "clipped per variable",
    "decay before clipping",
    "moving average of weights",
    "frozen",
    "epsilon of BatchNormalization",
    "images not rescaled",
    "no shuffle",
    "mask_zero forgotten",
)


@pytest.fixture(scope="module")
def good_records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """A directory, and the records of the scripts without mistakes so far."""
    return tmp_path_factory.mktemp("good"), {}


def record(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a script, and return its record."""
    keras.utils.clear_session()  # variables have the same names in each run
    keras.config.set_dtype_policy("float32")
    directory = path.with_suffix("") / "record"
    run_script(path, ["--record", str(directory)], monkeypatch)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in TRIED_BY_CI else in_matrix(name) for name in MISTAKES])
def test_a_mistake_in_a_script_is_named_first_and_nothing_else(
    name: str, good_records: tuple[Path, dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake, (root, records) = MISTAKES[name], good_records
    base = {**BASES[mistake.script], **mistake.base}
    good = edit_script(mistake.script, base, tmp_path / "good")
    if good.read_text() not in records:
        records[good.read_text()] = record(edit_script(mistake.script, base, root / str(len(records))), monkeypatch)
    bad = tmp_path / "bad" / mistake.script
    bad.parent.mkdir()
    bad.write_text(replace_texts(good.read_text(), mistake.edits))
    diagnosis = diagnose_records(records[good.read_text()], record(bad, monkeypatch))
    causes = [(cause.stage, cause.cause, cause.sentence) for cause in diagnosis.causes]
    assert causes, diagnosis.headline
    assert " ".join(causes[0][:2]) == mistake.cause, causes
    assert {cause for _, cause, _ in causes} <= {causes[0][1], *mistake.consequences}, causes


def replace_texts(text: str, edits: Edits) -> str:
    for old, new in edits.items():
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text
