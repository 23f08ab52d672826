"""The console in front of a person: a browser on one of its pages, and how its screens must look.

`compat/console/boxes.json` has the place and the size of the main elements of each screen, in a
wide and in a narrow window. `SHOAL_BOXES=write` records those of a test that passes otherwise: look
at the pictures before you commit them. `SHOAL_SCREENSHOTS=FOLDER` writes a picture of each screen,
light, dark and narrow.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.runs.machine import lacking

if TYPE_CHECKING:
    from support.console.browsers import Browser, Tab

SCREENSHOTS = os.environ.get("SHOAL_SCREENSHOTS", "")
WRITES = os.environ.get("SHOAL_BOXES", "") == "write"
BOXES = Path(__file__).parents[2] / "compat" / "console" / "boxes.json"
#: The widths of windows in CSS pixels: of a desk, and of a phone.
WIDE, NARROW = 1280, 390
#: How far an edge may be from its place, in pixels and as a part of the distance: releases of
#: Chromium draw controls with some pixels more or less, which add up from top to bottom.
PIXELS, PART = 8, 0.02
#: Seconds until each element must be in its place: a page follows the samples of the cluster.
SETTLE_S = 15.0
#: The fonts of the boxes. Others wrap lines elsewhere.
FONT = "DejaVu Sans"
#: Elements whose boxes are compared. What depends on the time or the machine is not among them.
_MEASURED = (
    ".top, .top nav, main, h1, h2, .cards, .card, .causes, .notice, .empty, .buttons,"
    " .filter, .legend, .bar:not(td *), .chart, table, form.act, form.act .field, .facts, .payload"
)
_MEASURE = f"""(() => {{
  const seen = {{}}, boxes = {{}};
  for (const one of document.querySelectorAll({json.dumps(_MEASURED)})) {{
    const box = one.getBoundingClientRect();
    if (!box.width || one.matches(".hidden, [hidden] *, details:not([open]) *")) continue;
    const name = one.nodeName.toLowerCase() + (one.classList.length ? "." + one.classList[0] : "");
    const number = seen[name] = (seen[name] ?? 0) + 1;
    boxes[`${{name}} ${{number}}`] = [box.left + scrollX, box.top + scrollY, box.right + scrollX,
      box.bottom + scrollY].map(Math.round);
  }}
  return boxes;
}})()"""

#: Fields whose text is so small that browsers of phones zoom into them.
_SMALL_FIELDS = """
  [...document.querySelectorAll("input:not([type=checkbox], [type=hidden]), select, textarea")]
    .filter(one => parseFloat(getComputedStyle(one).fontSize) < 16).map(one => one.outerHTML)
    .join(" ")
"""
Boxes = dict[str, list[int]]


def misplaced(found: Boxes, wanted: Boxes) -> list[str]:
    """Return a sentence for each element that is not where it should be.

    Boxes are left, top, right and bottom.
    """
    sentences = [f"{name} is missing" for name in wanted if name not in found]
    for name, box in found.items():
        if name not in wanted:
            sentences.append(f"{name} is new, at {box}")
        elif any(
            abs(edge - place) > PIXELS + PART * place
            for edge, place in zip(box, wanted[name], strict=True)
        ):
            sentences.append(f"{name} is at {box} and not at {wanted[name]}")
    return sentences


def _stored() -> dict[str, Boxes]:
    found: dict[str, Boxes] = json.loads(BOXES.read_text()) if BOXES.exists() else {}
    return found


def _store(screen: str, boxes: Boxes) -> None:
    every = _stored() | {screen: boxes}
    lines = [f"{json.dumps(name)}: {json.dumps(every[name])}" for name in sorted(every)]
    BOXES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


class Page(NamedTuple):
    """A console, and the browser of the person in front of it."""

    url: str
    browser: Browser
    tab: Tab

    async def group(self, name: str) -> None:
        """Find a group in the overview, and open its page."""
        await self.tab.goto(f"{self.url}?q={name}")
        await self.tab.click(name)

    async def act(self, *buttons: str) -> None:
        """Click on buttons, one page after the other, until the result is there."""
        for button in buttons:
            await self.tab.click(button)
        await self.tab.until("location.pathname === '/run' && document.querySelector('.good')")

    async def shows_nothing_wrong(self, name: str, *, has_boxes: bool = True) -> None:
        """Check the page for accessibility, for errors, and for elements out of place.

        A screen has no boxes if it depends on the time, on random names or on earlier tests,
        or is nightly.
        """
        tab = self.tab
        assert await tab.faults() == [], name
        assert tab.errors == [], name
        await self._looks(name, "light", has_boxes=has_boxes)
        await tab.look(width=WIDE, dark=True)
        assert await tab.faults("color-contrast") == [], f"{name}, dark"
        await self._looks(name, "dark", has_boxes=False)
        await tab.look(width=NARROW)
        wider = f"document.documentElement.scrollWidth > {NARROW}"
        assert not await tab.evaluate(wider), f"{name}: a narrow window must not scroll sideways"
        assert not await tab.evaluate(_SMALL_FIELDS), f"{name}: phones zoom into these fields"
        await self._looks(name, "narrow", has_boxes=has_boxes)
        await tab.look(width=WIDE)

    async def _settled(self) -> Boxes:
        """Return the boxes of the page once they have stayed for two seconds."""
        before: Boxes = {}
        while before != (found := await self.tab.evaluate(_MEASURE)):
            before = found
            await self.tab.evaluate("new Promise(done => setTimeout(done, 2000))")
        return before

    async def _looks(self, name: str, look: str, *, has_boxes: bool) -> None:
        if SCREENSHOTS:
            await self.tab.screenshot(Path(SCREENSHOTS) / f"{name}-{look}.png")
        if not has_boxes:
            return
        font = await self.tab.font()
        if font != FONT:
            remedy = "apt-get install fonts-dejavu-core"
            lacking(f"the boxes are those of {FONT}, and this machine has {font}: {remedy}")
        screen = f"{name}-{look}"
        wanted = await self._settled() if WRITES else _stored().get(screen, {})
        if WRITES:
            _store(screen, wanted)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        while wrong := misplaced(await self.tab.evaluate(_MEASURE), wanted):
            assert loop.time() < deadline, f"{screen}: {'; '.join(wrong)}"
            await self.tab.evaluate("new Promise(done => setTimeout(done, 200))")
