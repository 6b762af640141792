"""Program that runs a module as a command that ends with its parent process.

Usage: python -m common.cluster.child_command MODULE ARGUMENTS.
"""

import runpy
import signal
import sys

from common.cluster.processes import die_with_parent

# The SIGNALS of common.training.stop, repeated: that module must be imported after the loop below, since it records at
# import which signals are ignored.
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}

if __name__ == "__main__":
    # A child inherits blocked and ignored signals: Ray's actors block SIGINT, and under nohup they ignore SIGHUP.
    for signum in SIGNALS:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
