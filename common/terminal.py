"""Output of texts that someone else wrote, such as the names in a run directory, on a terminal."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import override

from common.errors import escape_control_characters


class SafeConsole(Console):
    """A console that shows the control characters of a text instead of sending them to the terminal.

    Rich removes only a few of them. Its own codes for colours are not part of a text.
    """

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to print, with their control characters escaped."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escape_control_characters(segment.text), segment.style)
