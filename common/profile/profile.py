"""Profile of a run's first rank: time per phase, and the lanes of the last profiled step."""

import zlib
from dataclasses import dataclass
from pathlib import Path

from common.profile.lanes import Lane, build_step_lanes
from common.profile.trace import read_trace, split_step_time

FILE = Path("profile", "rank-0.json.gz")


@dataclass(frozen=True)
class Profile:
    """Profile of the first rank of a run."""

    shares: dict[str, float]  # share of each phase in the time of the profiled steps, between 0 and 1
    lanes: dict[str, Lane]  # lanes of the last profiled step; times are milliseconds from the step's start

    @property
    def milliseconds(self) -> float:
        """The duration of the last profiled step: the end of its last span."""
        return max(span.end for lane in self.lanes.values() for span in lane)


def read_profile(run_dir: Path, framework: str, notes: list[str]) -> Profile | None:
    """Read the profile of a run.

    Args:
        run_dir: The run directory.
        framework: "torch" or "tf".
        notes: Receives a note if the profile cannot be read.

    Returns:
        The profile; None if the run has none or its file cannot be read.
    """
    path = run_dir / FILE
    if not path.is_file():
        return None
    try:
        events = read_trace(path)
        shares, lanes = split_step_time(events, framework), build_step_lanes(events, framework)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        notes.append(f"{path}: left out, since it cannot be read: {type(error).__name__}: {error}")
        return None
    return Profile(shares, lanes) if shares and lanes else None
