"""Recorders of foreign training scripts of TensorFlow and Keras. See common/recording/record_format.py.

These files run in the environment of the script: they import only TensorFlow, NumPy, the format, and each
other, and run on Python 3.9.
"""

from tf_impl.record.fit_recorder import FitRecorder
from tf_impl.record.recorder import Recorder

__all__ = ["FitRecorder", "Recorder"]
