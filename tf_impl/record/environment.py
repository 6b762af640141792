"""Versions, device and flags of the process in which a script trains, and its rank."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from common.recording.record_format import Environment
from tf_impl.record.model_facts import Layer, find_keras

LIBRARIES = ("keras_hub", "keras_nlp", "keras_cv", "transformers", "horovod", "tensorflow_addons")


def describe_environment(model: Layer) -> Environment:
    """Describe the environment in which a model is trained."""
    keras = find_keras(model)
    libraries = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    versions = {"python": platform.python_version(), "tensorflow": tf.__version__, "numpy": np.__version__}
    versions[keras.__name__] = keras.__version__
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU")
    return {
        "versions": {**versions, **{name: str(version) for name, version in libraries.items() if version}},
        "device": _name_device(devices[0].device_type) if devices else "cpu",
        "flags": _read_flags(model),
    }


def find_rank() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, from TF_CONFIG as TensorFlow's strategies do."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        chiefs, workers = (len(config["cluster"].get(role, [])) for role in ("chief", "worker"))
        task = config["task"]
        return int(task["index"]) + (chiefs if task["type"] == "worker" else 0), max(1, chiefs + workers)
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0, 1


def find_replica() -> int:
    """Return the number of the replica that computes now, counted over the replicas of all processes."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else int(context.replica_id_in_sync_group)


def _name_device(device_type: str) -> str:
    physical = tf.config.list_physical_devices(device_type)
    details = tf.config.experimental.get_device_details(physical[0]) if device_type == "GPU" and physical else {}
    return str(details.get("device_name", device_type))


def _count_threads() -> int | None:
    """Return the threads of an operation: the script's setting, else TF_NUM_INTRAOP_THREADS, else all cores."""
    variable = int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0)
    return tf.config.threading.get_intra_op_parallelism_threads() or variable or os.cpu_count()


def _read_flags(model: Layer) -> dict[str, object]:
    strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
    policy: Any = getattr(model, "dtype_policy", None)
    is_deterministic = getattr(tf.config.experimental, "is_op_determinism_enabled", None)
    readers: dict[str, Callable[[], object]] = {
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled,
        "tf32_override": lambda: os.environ.get("NVIDIA_TF32_OVERRIDE"),
        "deterministic": lambda: is_deterministic() if is_deterministic is not None else None,
        "threads": _count_threads,
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads,
        "autocast": lambda: policy.compute_dtype if policy.compute_dtype != policy.variable_dtype else None,
        "default_dtype": find_keras(model).backend.floatx,
        "policy": lambda: policy.name,
        "xla_auto_jit": tf.config.optimizer.get_jit,
        "xla_flags": lambda: os.environ.get("XLA_FLAGS"),
        "compiled": lambda: not tf.config.functions_run_eagerly(),
        "strategy": lambda: type(strategy).__name__,
        "replicas": lambda: int(strategy.num_replicas_in_sync),
        "world_size": lambda: find_rank()[1],
        "devices": lambda: len(tf.config.list_logical_devices("GPU")) or 1,
        "onednn": lambda: os.environ.get("TF_ENABLE_ONEDNN_OPTS"),
    }
    flags: dict[str, object] = {}
    for name, read in readers.items():
        try:
            flags[name] = read()
        except Exception:  # a version without this flag
            flags[name] = None
    return flags
