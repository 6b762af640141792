"""A guided tour of the collectives, then the all-reduce algorithms timed beside what theory predicts.

python -m torch_impl.collectives starts real processes that talk over Gloo on this machine's loopback interface;
torch_impl/communication/tour.py is what they do.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from common.cluster.network import find_loopback_interface
from common.cluster.supervisor import Process, supervise
from common.cluster.topology import LOOPBACK
from common.config.command_line import report_user_errors
from common.errors import UserError
from common.run_module import module_command

SIZES = ("1K", "16K", "256K", "4M")
QUICK_SIZES = ("1K", "64K")
UNITS = {"": 1, "K": 2**10, "M": 2**20}
MOST_RANKS, MOST_BYTES = 16, 2**26


class Parser(argparse.ArgumentParser):
    """Reports what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when a process failed, 128 + n after signal n. A user's error exits with 2 from inside."""
    parser = Parser(prog="python -m torch_impl.collectives", description=__doc__)
    parser.add_argument(
        "--ranks", type=_ranks, default=4, metavar="N", help=f"processes, 2 to {MOST_RANKS} (default 4)"
    )
    parser.add_argument(
        "--sizes",
        type=_size,
        nargs="+",
        metavar="BYTES",
        help=f"buffers that are timed, such as 4096, 64K or 4M (default {' '.join(SIZES)})",
    )
    parser.add_argument("--quick", action="store_true", help=f"time {' '.join(QUICK_SIZES)} by default, and only once")
    parser.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    options = parser.parse_args(arguments)
    sizes = options.sizes or [_size(text) for text in (QUICK_SIZES if options.quick else SIZES)]
    command = module_command("torch_impl.communication.tour", "1" if options.quick else "5", *map(str, sizes))
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        shared = {
            "WORLD_SIZE": str(options.ranks),
            "MASTER_ADDR": LOOPBACK,
            "LOCKSTEP_RENDEZVOUS": str(Path(directory, "rendezvous")),
            "GLOO_SOCKET_IFNAME": find_loopback_interface(),
            "OMP_NUM_THREADS": "1",
        }
        log = Path(directory, "log")
        outcome = supervise(
            [Process(f"rank {rank}", command, {"RANK": str(rank), **shared}) for rank in range(options.ranks)], log
        )
        if outcome.problem:
            sys.stderr.write(log.read_text())
            print(f"failed: {outcome.problem}", file=sys.stderr)
    return outcome.exit_code


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 2 to {MOST_RANKS}")
    return int(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KM]?)", text.upper())
    size = int(match[1]) * UNITS[match[2]] if match else 0
    if size % 4 or not 4 <= size <= MOST_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text}: must be bytes, a multiple of 4 up to {MOST_BYTES >> 20}M, such as 4096, 64K or 4M"
        )
    return size


if __name__ == "__main__":
    sys.exit(main())
