"""The devices of replicas: one GPU for each if there are GPUs, otherwise one logical CPU device for each."""

import keras
import tensorflow as tf

from common.config.validate import NO_GPU
from common.errors import UserError
from common.hardware import count_visible_gpus, get_peak_resident_bytes
from tf_impl.record.environment import describe_environment as describe_model_environment


def select_replica_devices(count: int, device: str = "auto") -> list[str]:
    """Return a device for each replica on this host. Raise UserError if TensorFlow cannot use the GPUs that it should.

    Call it before TensorFlow runs any operation: without GPUs, it creates logical CPU devices.

    Args:
        count: The number of replicas.
        device: The value of `train.device`.
    """
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")  # even if code of the user has made this process see them
    gpus = [] if device == "cpu" else tf.config.list_physical_devices("GPU")
    if not gpus and device != "cpu" and count_visible_gpus():
        raise UserError("this TensorFlow cannot use the visible GPU(s); set train.device=cpu or install its GPU build")
    if not gpus and device == "cuda":
        raise UserError(NO_GPU)
    tf.config.experimental.enable_tensor_float_32_execution(False)  # TF32 rounds float32 to 10 bits of mantissa
    if gpus:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        return [f"/GPU:{index}" for index in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"/CPU:{index}" for index in range(count)]


def measure_peak_memory(devices: list[str]) -> list[int]:
    """Return the peak memory of each replica in bytes: allocated on its GPU, or resident in this process."""
    return [
        tf.config.experimental.get_memory_info(device[1:])["peak"] if "GPU" in device else get_peak_resident_bytes()
        for device in devices
    ]


def describe_environment() -> dict[str, object]:
    """Return the device and the flags that decide how this process rounds numbers."""
    environment = describe_model_environment(keras.layers.Layer())
    return {"device": environment["device"], "flags": environment["flags"]}
