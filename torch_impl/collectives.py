"""A guided tour of the collectives, followed by the measured and predicted times of the all-reduce algorithms.

python -m torch_impl.collectives starts processes that communicate over Gloo on the loopback interface of this machine.
They run torch_impl/communication/tour.py.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from typing_extensions import override

from common.cluster.network import find_loopback_interface
from common.cluster.processes import open_temporary_directory
from common.cluster.supervisor import Process, supervise
from common.cluster.topology import LOOPBACK
from common.config.command_line import report_user_errors
from common.errors import UserError
from common.run_module import module_command

SIZES = ("1K", "16K", "256K", "4M")
QUICK_SIZES = ("1K", "64K")
UNITS = {"": 1, "K": 2**10, "M": 2**20}
MAX_RANKS, MAX_BYTES = 16, 2**26


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    @override
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tour. Return the exit code: 0, 1 if a process has failed, 128 + n after signal n.

    After a mistake of the user, the process exits with code 2 instead.
    """
    parser = Parser(prog="python -m torch_impl.collectives", description=__doc__)
    parser.add_argument(
        "--ranks", type=_parse_ranks, default=4, metavar="N", help=f"processes, 2 to {MAX_RANKS} (default 4)"
    )
    parser.add_argument(
        "--sizes",
        type=_parse_size,
        nargs="+",
        metavar="BYTES",
        help=f"sizes of the timed buffers, such as 4096, 64K or 4M (default {' '.join(SIZES)})",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"measure each size only once, by default {' '.join(QUICK_SIZES)}"
    )
    # report_user_errors reads --debug.
    parser.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    options = parser.parse_args(arguments)
    sizes = options.sizes or [_parse_size(text) for text in (QUICK_SIZES if options.quick else SIZES)]
    command = module_command("torch_impl.communication.tour", "1" if options.quick else "5", *map(str, sizes))
    with open_temporary_directory() as (directory, removal_variable):
        environment = {
            **removal_variable,
            "WORLD_SIZE": str(options.ranks),
            "MASTER_ADDR": LOOPBACK,
            "LOCKSTEP_RENDEZVOUS": str(directory / "rendezvous"),
            "GLOO_SOCKET_IFNAME": find_loopback_interface(),
            "OMP_NUM_THREADS": "1",
        }
        log = directory / "log"
        outcome = supervise(
            [Process(f"rank {rank}", command, {"RANK": str(rank), **environment}) for rank in range(options.ranks)], log
        )
        if outcome.problem:
            sys.stderr.write(log.read_text())
            print(f"failed: {outcome.problem}", file=sys.stderr)
    return outcome.exit_code


def _parse_ranks(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 2 to {MAX_RANKS}")
    return int(text)


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KM]?)", text.upper())
    size = int(match[1]) * UNITS[match[2]] if match else 0
    if size % 4 or not 4 <= size <= MAX_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text}: must be bytes, a multiple of 4 up to {MAX_BYTES >> 20}M, such as 4096, 64K or 4M"
        )
    return size


if __name__ == "__main__":
    sys.exit(main())
