"""The messages of the commands of a run's hosts, which synchronize the start and the end of every attempt.

Each host runs one command, which starts the training processes of that host. An attempt is one start of all processes
of the run. After a failed attempt, another attempt follows if `train.max_restarts` allows it. Hosts have an index from
0, the first host.

For each attempt, the command of every other host connects to the first host's command and sends JoinAttempt. The first
host answers with OfferCheckpoint. A host that lacks this checkpoint opens another connection, sends FetchCheckpoint and
receives the checkpoint. Each host then sends HostReady. Once all hosts are ready, the first host sends StartAttempt. At
the end of an attempt each host sends AttemptEnded; the first host sends NextAttempt instead if it will start another
attempt. If a connection breaks without such a message, as after SIGKILL, the command at the other end was lost.
"""

from typing import TypedDict


class JoinAttempt(TypedDict):
    """First message of a host: the index of the host."""

    join: int


class CheckpointOffer(TypedDict):
    """The step and the fingerprint of the checkpoint that an attempt starts from."""

    step: int
    fingerprint: str


class OfferCheckpoint(TypedDict):
    """The first host's answer to JoinAttempt. None: the attempt starts from the initial weights."""

    offer: CheckpointOffer | None


class FetchCheckpoint(TypedDict):
    """The only message on a connection over which a host receives the checkpoint: its fingerprint."""

    fetch: str


class HostReady(TypedDict):
    """A host's report that it has the offered checkpoint: the index of the host."""

    ready: int


class StartAttempt(TypedDict):
    """The first host's order to start the processes: the number of the attempt, and the token of the run."""

    start: int
    token: str


class AttemptEnded(TypedDict):
    """A host's report that its command has ended, or that its attempt has failed: the exit code."""

    ended: int


class NextAttempt(TypedDict):
    """The first host's report that its attempt has failed. again: the number of the attempt that follows."""

    again: int


PeerMessage = JoinAttempt | OfferCheckpoint | FetchCheckpoint | HostReady | StartAttempt | AttemptEnded | NextAttempt
