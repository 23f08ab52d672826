"""Rich's console that writes `make_visible` text only: apart from `terminal`, which needs no
package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from shoal.cli.terminal import make_visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType


class SafeConsole(Console):
    """A console at which foreign text in tables, titles and styles controls nothing."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render segments; those of Rich itself, which move the cursor, stay as they are."""
        for segment in super().render(renderable, options):
            if segment.control or not self.is_terminal:
                yield segment
            else:
                yield Segment(make_visible(segment.text), segment.style)
