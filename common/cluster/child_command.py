"""A command that ends with its parent: python -m common.cluster.child_command MODULE ARGUMENTS."""

import runpy
import signal
import sys

from common.cluster.processes import die_with_parent

# The same as in common.training.stop, which must be imported later: it records which signals are ignored.
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}

if __name__ == "__main__":
    # Ray's actors block SIGINT, and a raylet that nohup started ignores SIGHUP. Their children inherit that.
    for signum in SIGNALS:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
