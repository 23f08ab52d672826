"""`shoal profile`: named clusters, so that commands need no addresses and credentials."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output, profiles
from shoal.cli.client_properties import parse_flags
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, Property, make_app, run_guarded
from shoal.cli.terminal import say
from shoal.client import config_providers
from shoal.client.errors import ClientError
from shoal.client.properties import parse_properties
from shoal.client.settings import DEFAULT_BOOTSTRAP, Settings

app = make_app("Create, choose, show and delete named clusters.")

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
        saved = profiles.load()
        if name in saved.profiles and not replace:
            raise CommandError(f"profile {name} exists. Add --replace to replace it.")
        values = _read_properties(from_file)
        values |= parse_flags(property)
        if bootstrap_server is not None:
            values[_BOOTSTRAP] = bootstrap_server
        values = {key: _make_absolute(key, value) for key, value in values.items()}
        servers = values.get(_BOOTSTRAP)
        if not servers:
            raise CommandError(
                "the profile needs the address of a cluster: --bootstrap-server, or"
                f" {_BOOTSTRAP} in the file of --from.",
                USAGE,
            )
        Settings.from_bootstrap(
            servers, {key: value for key, value in values.items() if key != _BOOTSTRAP}
        )
        saved.profiles[name] = values
        if use or saved.current is None:
            saved.current = name
        profiles.save(saved)
        in_use = ". Commands use it" if saved.current == name else ""
        say(f"Created profile {name}{in_use}.")

    _run_guarded(run)


@app.command("use")
def use(name: Name) -> None:
    """Let commands use a profile unless they name a cluster."""

    def run() -> None:
        saved = profiles.load()
        servers = saved[name].get(_BOOTSTRAP)
        saved.current = name
        profiles.save(saved)
        say(f"Commands use profile {name} ({servers}).")

    _run_guarded(run)


@app.command("list")
def list_profiles(format: FormatOption = Format.TABLE) -> None:
    """List profiles; one of them is in use."""

    def run() -> None:
        saved = profiles.load()
        rows = [
            {
                "profile": name,
                "in_use": name == saved.current,
                "bootstrap_servers": entry.get(_BOOTSTRAP),
                "security_protocol": entry.get("security.protocol", "PLAINTEXT"),
                "user": entry.get("sasl.username"),
            }
            for name, entry in sorted(saved.profiles.items())
        ]
        empty = "There are no profiles. Create one with `shoal profile create NAME`."
        output.print_rows(format, rows, empty=empty, expendable=["user", "security_protocol"])

    _run_guarded(run)


@app.command("show")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Default: the one in use.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the properties of a profile without its secrets."""

    def run() -> None:
        saved = profiles.load()
        chosen = name or saved.current
        if chosen is None:
            raise CommandError(
                f"no profile is in use; commands connect to {DEFAULT_BOOTSTRAP}. Choose one with"
                " `shoal profile use NAME`."
            )
        redacted = profiles.hide_secrets(saved[chosen])
        if format is not Format.TABLE:
            row = {"profile": chosen, "in_use": chosen == saved.current, "properties": redacted}
            output.print_rows(format, [row])
            return
        rows = [{"property": key, "value": value} for key, value in redacted.items()]
        output.print_rows(format, rows, title=f"Profile {chosen}")

    _run_guarded(run)


@app.command("delete")
def delete(name: Name) -> None:
    """Delete a profile with its secrets."""

    def run() -> None:
        saved = profiles.load()
        saved[name]
        del saved.profiles[name]
        if saved.current == name:
            saved.current = None
        profiles.save(saved)
        say(f"Deleted profile {name}.")

    _run_guarded(run)


def _run_guarded(run: Callable[[], None]) -> None:
    def run_checked() -> None:
        try:
            run()
        except (ValueError, ClientError) as error:
            raise CommandError(f"{error}.", USAGE) from None

    run_guarded(run_checked)


def _read_properties(file: Path | None) -> dict[str, str]:
    """Return the properties of a file, or of standard input."""
    if file is None:
        return {}
    try:
        return dict(parse_properties(sys.stdin.read() if str(file) == "-" else file.read_text()))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}.", USAGE) from None


def _make_absolute(key: str, value: str) -> str:
    """Make a path absolute: commands may run in any folder."""
    is_path = re.fullmatch(r".*\.(location|file)", key) and not config_providers.has_references(
        {key: value}
    )
    return str(Path(value).absolute()) if is_path and value else value
