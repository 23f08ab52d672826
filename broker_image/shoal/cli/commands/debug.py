"""`shoal debug`: a support bundle of a cluster, without secrets."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli import output, profiles
from shoal.cli.client_properties import read_environment
from shoal.cli.commands import bundle as contents
from shoal.cli.redaction import Redaction
from shoal.cli.session import UNREACHABLE, USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.security import security
from shoal.client.security.secret import Secret

app = make_app("Collect what helps to find the cause of a problem.")


@app.callback()
def _debug() -> None:
    """Collect what helps to find the cause of a problem."""


@command(app, "bundle")
async def bundle(
    client: Client,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.tar.gz", help="The archive. It must not exist.")
    ],
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            "--logs",
            metavar="PATH",
            help="A log file or a folder of *.log files; may be repeated.",
        ),
    ] = None,
    log_bytes: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="The end of each log file to include.")
    ] = 10 << 20,
) -> None:
    """Write an archive with the cluster's description, configs, groups, share state, metrics,
    versions, and the logs that --logs names. No records, keys, passwords or tokens are in it; names
    of topics, groups, clients and hosts are.
    """
    if file.exists():
        raise CommandError(f"{file} exists. Name a new file.", USAGE)
    log_files = list(_find_log_files(logs or []))
    sections, errors = await contents.collect(client)
    redaction = Redaction(_find_secrets(client))
    texts = {
        name: redaction.redact_text(part)
        if isinstance(part, str)
        else _to_json(redaction.redact_value(part))
        for name, part in sections.items()
    }
    for name, log in log_files:
        try:
            texts[name] = redaction.redact_text(_read_end(log, log_bytes))
        except OSError as error:
            errors[name] = error.strerror or str(error)
    if errors:
        texts["errors.json"] = _to_json(redaction.redact_value(errors))
    _write(file, texts)
    for name, why in errors.items():
        warn(f"{name} is missing: {redaction.redact_text(why)}")
    say(f"Wrote {file} with {len(texts)} files, {file.stat().st_size:,} bytes.")
    if "cluster.json" in errors:
        raise CommandError(
            "the cluster did not answer; the bundle lacks what it knows.", UNREACHABLE
        )


def _to_json(part: Any) -> str:
    return json.dumps(part, default=output.to_plain, indent=2) + "\n"


def _find_secrets(client: Client) -> Iterator[str]:
    """Yield the secrets of this command, and of all profiles."""
    yield from _find_secrets_in(client.cluster.settings.security)
    for properties in (read_environment(os.environ), *profiles.load().profiles.values()):
        yield from (v for name, v in properties.items() if security.has_secret(name, v))


def _find_secrets_in(settings: Any) -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Secret):
            yield value.reveal()
        elif dataclasses.is_dataclass(value):
            yield from _find_secrets_in(value)


def _find_log_files(paths: list[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the names in the archive, and the log files. Raises `CommandError` for a path
    without."""
    for index, path in enumerate(paths):
        files = sorted(path.glob("*.log")) if path.is_dir() else [path]
        if not files or not files[0].exists():
            raise CommandError(f"{path} is neither a log file nor a folder of *.log files.", USAGE)
        yield from ((f"logs/{index}/{file.name}", file) for file in files)


def _read_end(file: Path, bytes_max: int) -> str:
    """Return the last bytes of a file, from the beginning of a line on: a cut line could hide the
    name of a secret.
    """
    with file.open("rb") as opened:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(max(0, size - bytes_max))
        data = opened.read(bytes_max)
    if size > bytes_max:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")


def _write(file: Path, texts: Mapping[str, str]) -> None:
    """Write the archive for its owner only. A failure leaves no file. Raises `CommandError`."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    root, now = file.name.partition(".")[0] or "bundle", int(time.time())
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with (
                os.fdopen(descriptor, "wb") as opened,
                tarfile.open(fileobj=opened, mode="w:gz") as archive,
            ):
                for name, text in texts.items():
                    data = text.encode()
                    entry = tarfile.TarInfo(f"{root}/{name}")
                    entry.size, entry.mtime, entry.mode = len(data), now, 0o600
                    archive.addfile(entry, io.BytesIO(data))
            os.link(part, file)  # Unlike a rename, it replaces no file.
        finally:
            part.unlink()
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}.", USAGE) from None
