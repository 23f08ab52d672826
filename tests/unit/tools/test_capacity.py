"""The calculator of docs/capacity.md uses the measurements in docs/scaling.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = (ROOT / "tools" / "site" / "assets" / "capacity.js").read_text()
SCALING = (ROOT / "docs" / "scaling.md").read_text()
CAPACITY = (ROOT / "docs" / "capacity.md").read_text()
FIGURE = re.compile(r'^  \w+: \["([^"]+)", ([\d.]+), "(\w+)"\],$', re.MULTILINE)


def test_every_figure_is_a_row_of_the_measurements() -> None:
    figures = FIGURE.findall(SCRIPT)
    assert len(figures) == SCRIPT.count('["') >= 10
    # Both kinds of members have a row "its heartbeat". The last one is that of share groups.
    rows = dict(re.findall(r"^\| (.+?) \| ([\d.]+ \w+) \|$", SCALING, re.MULTILINE))
    for name, number, unit in figures:
        shown = rows[name].replace(" byte", " bytes").replace("bytess", "bytes")
        assert shown == f"{number} {unit}"


def test_the_form_has_every_input_of_the_script() -> None:
    used = set(re.findall(r"given\.(\w+)", SCRIPT))
    assert set(re.findall(r'<input name="(\w+)"', CAPACITY)) == used
    shown = re.search(r"const texts = \{(.+?)\};", SCRIPT, re.DOTALL)
    assert shown is not None
    assert re.findall(r'data-capacity="(\w+)"', CAPACITY) == re.findall(r"(\w+): `", shown[1])
