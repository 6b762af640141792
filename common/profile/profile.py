"""What train.profile=true left of a run: where the time of a step goes, and what its last profiled step did when."""

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from common.profile.lanes import Lane, step_lanes
from common.profile.trace import read_trace, split_step_time

FILE = Path("profile", "rank-0.json.gz")
NARROWEST = 1 / 2000  # of a step; shorter parts cannot be seen
COLOURS, PLAIN = 6, 6  # layers take turns at the first colours of the palette; reductions and updates have this one


@dataclass(frozen=True)
class Part:
    """Something that a rank did, from and to when in milliseconds. colour: its index in the palette."""

    name: str
    start: float
    end: float
    colour: int


@dataclass(frozen=True)
class Profile:
    """Of the first rank. split: share of each phase in the time. lanes: of the last step, in milliseconds."""

    split: dict[str, float]
    lanes: dict[str, Lane]

    @property
    def milliseconds(self) -> float:
        """The end of the last step."""
        return max(end for lane in self.lanes.values() for _, _, end in lane)

    @cached_property
    def visible(self) -> dict[str, Lane]:
        """The lanes without the parts that are too short."""
        shortest = NARROWEST * self.milliseconds
        return {name: [part for part in lane if part[2] - part[1] >= shortest] for name, lane in self.lanes.items()}

    @cached_property
    def layers(self) -> dict[str, int]:
        """The colour of each layer, in order of the forward pass."""
        names = dict.fromkeys(name for lane in ("forward", "backward") for name, _, _ in self.visible[lane])
        return {name: index % COLOURS for index, name in enumerate(name for name in names if name not in self.lanes)}

    @property
    def parts(self) -> dict[str, list[Part]]:
        """What can be seen of each lane. A layer has the same colour forward and backward."""
        return {
            lane: [Part(name, start, end, self.layers.get(name, PLAIN)) for name, start, end in parts]
            for lane, parts in self.visible.items()
        }


def read_profile(run_dir: Path, framework: str, notes: list[str]) -> Profile | None:
    """None where a run has none. A file that cannot be read is left out, which is added to the notes."""
    path = run_dir / FILE
    if not path.is_file():
        return None
    try:
        events = read_trace(path)
        split, lanes = split_step_time(events, framework), step_lanes(events, framework)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        notes.append(f"{path}: left out, since it cannot be read: {type(error).__name__}: {error}")
        return None
    return Profile(split, lanes) if split and lanes else None
