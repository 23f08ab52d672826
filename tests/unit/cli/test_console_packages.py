"""Without its packages the console names the command that installs them, in a wheel or a clone."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from shoal.cli.commands import side_console


@pytest.mark.parametrize(
    ("absent", "says"),
    [
        ([], ""),
        (["jinja2"], "the console needs jinja2. Install it with `{pip} jinja2`."),
        (
            ["aiohttp", "jinja2"],
            "the console needs aiohttp and jinja2. Install them with `{pip} aiohttp jinja2`.",
        ),
    ],
)
def test_the_command_installs_what_is_absent(
    monkeypatch: pytest.MonkeyPatch, absent: list[str], says: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else find(name)
    )
    assert side_console.describe_missing() == says.format(pip=f"{sys.executable} -m pip install")
