"""A command that ends with its parent: python -m common.cluster.child_command MODULE ARGUMENTS"""

import runpy
import signal
import sys

from common.cluster.processes import die_with_parent

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray's actors ignore it, and so would what they start
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
