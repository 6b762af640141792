"""Where replicas live: a GPU each where there are GPUs, else a logical CPU device each."""

import tensorflow as tf

from common.errors import UserError
from common.hardware import count_visible_gpus, get_peak_resident_bytes


def select_replica_devices(count: int) -> list[str]:
    """The devices of this machine's replicas. Makes logical CPU devices, so call it before TensorFlow runs anything."""
    if count_visible_gpus() and not tf.config.list_physical_devices("GPU"):
        raise UserError(
            "this TensorFlow cannot use the visible GPU(s); set CUDA_VISIBLE_DEVICES= (empty) or install its GPU build"
        )
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.experimental.enable_tensor_float_32_execution(False)  # float32 means float32
    if gpus:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        return [f"/GPU:{index}" for index in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"/CPU:{index}" for index in range(count)]


def measure_peak_memory(devices: list[str]) -> list[int]:
    """Peak memory of each replica: allocated on its GPU, or resident in this process."""
    return [
        tf.config.experimental.get_memory_info(device[1:])["peak"] if "GPU" in device else get_peak_resident_bytes()
        for device in devices
    ]
