"""`shoal profile`: named clusters, so that commands need no addresses and credentials."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output, profiles
from shoal.cli.client_properties import from_flags
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, Property, guarded, new_app
from shoal.cli.terminal import say
from shoal.client import config_providers
from shoal.client.errors import ClientError
from shoal.client.properties import properties
from shoal.client.settings import DEFAULT_BOOTSTRAP, Settings

app = new_app("Create, choose, show and delete named clusters.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")]
_BOOTSTRAP = "bootstrap.servers"


@app.command("create")
def create(
    name: Name,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "-b", metavar="HOST:PORT,...", help="Brokers of the cluster."
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Copy the client properties of this file, with secrets; - is standard input.",
        ),
    ] = None,
    property: Property = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the profile if it exists.")
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Also use it from now on.")] = False,
) -> None:
    """Create a profile from an address, a properties file, and single properties."""

    def run() -> None:
        profiles.check_name(name)
        known = profiles.load()
        if name in known.profiles and not replace:
            raise Failed(f"profile {name} exists. Add --replace to replace it.")
        given = _properties(from_file)
        given |= from_flags(property)
        if bootstrap_server is not None:
            given[_BOOTSTRAP] = bootstrap_server
        given = {key: _whole_path(key, value) for key, value in given.items()}
        where = given.get(_BOOTSTRAP)
        if not where:
            raise Failed(
                "the profile needs the address of a cluster: --bootstrap-server, or"
                f" {_BOOTSTRAP} in the file of --from.",
                USAGE,
            )
        Settings.of(where, {key: value for key, value in given.items() if key != _BOOTSTRAP})
        known.profiles[name] = given
        if use or known.current is None:
            known.current = name
        profiles.save(known)
        in_use = ". Commands use it" if known.current == name else ""
        say(f"Created profile {name}{in_use}.")

    _guarded(run)


@app.command("use")
def use(name: Name) -> None:
    """Let commands use a profile unless they name a cluster."""

    def run() -> None:
        known = profiles.load()
        where = known[name].get(_BOOTSTRAP)
        known.current = name
        profiles.save(known)
        say(f"Commands use profile {name} ({where}).")

    _guarded(run)


@app.command("list")
def list_profiles(format: FormatOption = Format.TABLE) -> None:
    """List profiles; one of them is in use."""

    def run() -> None:
        known = profiles.load()
        rows = [
            {
                "profile": name,
                "in_use": name == known.current,
                "bootstrap_servers": one.get(_BOOTSTRAP),
                "security_protocol": one.get("security.protocol", "PLAINTEXT"),
                "user": one.get("sasl.username"),
            }
            for name, one in sorted(known.profiles.items())
        ]
        empty = "There are no profiles. Create one with `shoal profile create NAME`."
        output.rows(format, rows, empty=empty, expendable=["user", "security_protocol"])

    _guarded(run)


@app.command("show")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Default: the one in use.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the properties of a profile without its secrets."""

    def run() -> None:
        known = profiles.load()
        wanted = name or known.current
        if wanted is None:
            raise Failed(
                f"no profile is in use; commands connect to {DEFAULT_BOOTSTRAP}. Choose one with"
                " `shoal profile use NAME`."
            )
        found = profiles.shown(known[wanted])
        if format is Format.JSON:
            row = {"profile": wanted, "in_use": wanted == known.current, "properties": found}
            output.rows(format, [row])
            return
        rows = [{"property": key, "value": value} for key, value in found.items()]
        output.rows(format, rows, title=f"Profile {wanted}")

    _guarded(run)


@app.command("delete")
def delete(name: Name) -> None:
    """Delete a profile with its secrets."""

    def run() -> None:
        known = profiles.load()
        known[name]
        del known.profiles[name]
        if known.current == name:
            known.current = None
        profiles.save(known)
        say(f"Deleted profile {name}.")

    _guarded(run)


def _guarded(run: Callable[[], None]) -> None:
    def checked() -> None:
        try:
            run()
        except (ValueError, ClientError) as error:
            raise Failed(f"{error}.", USAGE) from None

    guarded(checked)


def _properties(file: Path | None) -> dict[str, str]:
    """Return the properties of a file, or of standard input."""
    if file is None:
        return {}
    try:
        return dict(properties(sys.stdin.read() if str(file) == "-" else file.read_text()))
    except OSError as error:
        raise Failed(f"cannot read {file}: {error.strerror}.", USAGE) from None


def _whole_path(key: str, value: str) -> str:
    """Make a path absolute: commands may run in any folder."""
    is_path = re.fullmatch(r".*\.(location|file)", key) and not config_providers.has_references(
        {key: value}
    )
    return str(Path(value).absolute()) if is_path and value else value
