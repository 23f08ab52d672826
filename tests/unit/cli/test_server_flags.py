"""`shoal server` reads a usual command line as typer does, and leaves the others to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer
from shoal.cli.commands import serve
from shoal.cli.main import load_app
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLES = {
    "SHOAL_LISTENER": "127.0.0.1:1 A://127.0.0.1:2",
    "SHOAL_DATA_DIR": "/data",
    "SHOAL_CONFIG": "server.properties",
}


@pytest.fixture
def served_flags(monkeypatch: pytest.MonkeyPatch) -> list[serve.ServerFlags]:
    """What `serve` is called with."""
    found: list[serve.ServerFlags] = []
    monkeypatch.setattr(serve, "serve", found.append)
    return found


def parse(words: Sequence[str], variables: dict[str, str]) -> int:
    """Parse a command line with typer. Return the exit status."""
    return CliRunner().invoke(load_app("server"), list(words), env=variables).exit_code


@pytest.mark.parametrize("variables", [{}, VARIABLES], ids=["flags", "variables"])
@pytest.mark.parametrize(
    "line",
    [
        "",
        "--listener=127.0.0.1:1 --listener 127.0.0.1:2 --data-dir=/d --config=c.properties",
        "--set=a=b --set c=d=e --node-id=3 --quorum 1@h:1 --cluster-id=x --metrics=h:9",
        "--brokers-per-host 2 --console=h:8 --insecure --add-scram=@users",
        "--log-level=debug --log-json --data-dir /a --data-dir=/b",
    ],
)
def test_usual_lines(
    line: str, variables: dict[str, str], served_flags: list[serve.ServerFlags]
) -> None:
    assert parse(line.split(), variables) == 0
    (by_typer,) = served_flags
    assert _plain(serve.read_flags(line.split(), variables)) == _plain(by_typer)


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "topics",
        "--node-id=one",
        "--node-id",
        "--node-id -1",
        "--data-dir=",
        "--insecure=yes",
        "--no-such=1",
        "--data_dir=/d",
        "-h",
    ],
)
def test_typer_explains_the_others(line: str) -> None:
    assert serve.read_flags(line.split(), {}) is None


def test_each_flag_is_known() -> None:
    options = [one.opts[0] for one in typer.main.get_command(load_app("server")).params]
    names = [f"--{name.replace('_', '-')}" for name in serve.ServerFlags._fields]
    assert names == [name for name in options if name != "--help"]


def _plain(flags: serve.ServerFlags | None) -> Any:
    assert flags is not None
    return [list(v) if isinstance(v, list | tuple) else v for v in flags]
