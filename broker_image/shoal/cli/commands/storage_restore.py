"""`shoal storage restore`: the data directory of a node, from what a lost cluster left in a bucket.

It needs no cluster: it runs on each node of the new one, before it starts.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from uuid import uuid4

import typer

from shoal.cli import output, timestamps
from shoal.cli.failures import REFUSED
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, run_guarded
from shoal.cli.terminal import say
from shoal.log.storage import DiskStorage
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.server.tiered.restore import RestoreReport, RestoreTarget
    from shoal.tiered.store import ObjectStore


def _make_option(metavar: str, help: str) -> Any:
    return typer.Option(metavar=metavar, help=help)


def restore(
    data_dir: Annotated[
        str | None, _make_option("DIR", "An empty directory. Config: log.dirs.")
    ] = None,
    url: Annotated[str | None, _make_option("URL", "Config: shoal.remote.store.url.")] = None,
    endpoint: Annotated[
        str | None, _make_option("URL", "Config: shoal.remote.store.endpoint.")
    ] = None,
    region: Annotated[
        str | None, _make_option("NAME", "Config: shoal.remote.store.region.")
    ] = None,
    key_directory: Annotated[
        str | None, _make_option("DIR", "Config: shoal.remote.encryption.key.directory.")
    ] = None,
    clear_backup: Annotated[
        bool,
        typer.Option(
            "--clear-backup", help="With keys, accept a backup that is not encrypted, too."
        ),
    ] = False,
    cluster_id: Annotated[
        str | None,
        _make_option(
            "ID", "The lost cluster; the only one in the store. Config: shoal.cluster.id."
        ),
    ] = None,
    node_id: Annotated[
        int | None, _make_option("N", "The id of this node. Config: node.id.")
    ] = None,
    brokers: Annotated[
        str | None, _make_option("N,...", "All brokers of the new cluster. Default: this node.")
    ] = None,
    topic: Annotated[list[str] | None, _make_option("NAME", "Only this topic. Repeatable.")] = None,
    idle: Annotated[
        str, _make_option("DURATION", "How long the lost cluster must be silent.")
    ] = "60s",
    config: Annotated[
        Path | None, _make_option("FILE", "The node's properties file, for options not given.")
    ] = None,
    id: Annotated[
        str, _make_option("TEXT", "Repeat what was interrupted under this id, not what has ended.")
    ] = "",
    summary: Annotated[
        str, _make_option("FILE", "Write the result, or the error, as at most 4 KB of JSON.")
    ] = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Restore a node of a lost cluster from the bucket: topics, configs, records and positions.

    Run it on each node of the new cluster with the same options but --node-id and --data-dir. Then
    start the nodes. A node that is not in --brokers is a controller alone, and gets the metadata
    only. It prints up to which offset each partition came back.
    """
    from shoal.server.tiered.restore import RestoreTarget

    def run() -> None:
        options = _RestoreSettings(
            data_dir, node_id, url, endpoint, region, key_directory, cluster_id
        )
        settings = _complete(options, config)
        node = 1 if settings.node_id is None else settings.node_id
        ids = _parse_ids(brokers, node, settings.roles)
        topics = frozenset(topic) if topic else None
        accepts_clear = clear_backup or not settings.key_directory
        idle_ms, path = _parse_idle_ms(idle), os.path.abspath(str(settings.data_dir))
        target = RestoreTarget(path, node, ids, topics, idle_ms, id, accepts_clear)
        _print_report(_restore_with_summary(settings, target, summary), target, format)

    run_guarded(run)


class _RestoreSettings(NamedTuple):
    """The settings of the node, from options and from its properties file."""

    data_dir: str | None
    node_id: int | None
    url: str | None
    endpoint: str | None
    region: str | None
    key_directory: str | None
    cluster_id: str | None
    #: Config: process.roles. None: unknown.
    roles: Sequence[str] | None = None


def _restore_with_summary(
    settings: _RestoreSettings, target: RestoreTarget, summary: str
) -> RestoreReport:
    """Restore, and write the result or the error to the file `summary`."""
    from shoal.server.tiered import restore_summary

    try:
        report = asyncio.run(_restore(settings, target))
    except _RestoreError as error:
        _write_summary(summary, restore_summary.encode_failure(error.kind, str(error)))
        raise
    _write_summary(summary, restore_summary.encode_success(report))
    return report


def _parse_idle_ms(idle: str) -> int:
    """Return the duration of --idle in milliseconds. Raises `CommandError`."""
    idle_ms = timestamps.parse_duration_ms(idle)
    if idle_ms is None:
        raise CommandError(f"--idle {idle!r} is not a duration, such as 60s or PT1M.", USAGE)
    return int(idle_ms)


def _complete(options: _RestoreSettings, config: Path | None) -> _RestoreSettings:
    """Return the settings with those of the file. Raises `CommandError` if a needed one is missing.

    The result has a data directory and the store's URL.
    """
    settings = options if config is None else _with_file(options, config)
    if not settings.data_dir or not settings.url:
        text = "--data-dir and --url are needed, or a --config FILE that has both."
        raise CommandError(text, USAGE)
    return settings


def _with_file(options: _RestoreSettings, path: Path) -> _RestoreSettings:
    """Return the settings with those of the file, or of the environment, where none is given."""
    from shoal.server.config import InvalidConfig, resolve

    try:
        resolved = resolve({}, os.environ, path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise CommandError(f"Cannot read the configuration file {path}: {reason}.", USAGE) from None
    except InvalidConfig as error:
        raise CommandError(str(error), USAGE) from None
    configured = _RestoreSettings(
        resolved.data_dir,
        resolved.node_id,
        resolved["shoal.remote.store.url"],
        resolved["shoal.remote.store.endpoint"],
        resolved["shoal.remote.store.region"],
        resolved["shoal.remote.encryption.key.directory"],
        resolved["shoal.cluster.id"] or None,
        resolved["process.roles"],
    )
    pairs = zip(options, configured, strict=True)
    return _RestoreSettings._make(own if own is not None else its for own, its in pairs)


class _RestoreError(CommandError):
    """A restore that failed; `kind` is a word for programs."""

    def __init__(self, kind: str, sentence: str, code: int = REFUSED) -> None:
        super().__init__(sentence, code)
        self.kind = kind


def _write_summary(path: str, data: bytes) -> None:
    """Write a summary; without a path, do nothing."""
    if not path:
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise CommandError(
            f"{path} was not written: {error.strerror}. Name another --summary."
        ) from None


def _parse_ids(brokers: str | None, node_id: int, roles: Sequence[str] | None) -> list[int]:
    """Return the ids of the brokers. Raises `CommandError` if they contradict the node's
    `roles`."""
    from shoal.server.cluster_config import BROKER

    is_broker = roles is None or BROKER in roles
    if brokers is None:
        if not is_broker:
            text = f"Node {node_id} is a controller (process.roles): name the --brokers."
            raise CommandError(text, USAGE)
        return [node_id]
    try:
        ids = sorted({int(part) for part in brokers.split(",")})
    except ValueError:
        text = f"--brokers {brokers!r} is not a list of ids, such as 1,2,3."
        raise CommandError(text, USAGE) from None
    if roles is None or is_broker == (node_id in ids):
        return ids
    if is_broker:
        text = f"Node {node_id} is a broker (process.roles), and --brokers lacks it: add it."
    else:
        text = f"Node {node_id} is a controller (process.roles): take it out of --brokers."
    raise CommandError(text, USAGE)


async def _restore(settings: _RestoreSettings, target: RestoreTarget) -> RestoreReport:
    from shoal.server.tiered import restore
    from shoal.server.tiered.key_ring import KeyDirectory
    from shoal.tiered.sealing import KeyUnavailable

    store = _open_store(settings.url or "", settings.endpoint or "", settings.region or "")
    disk = DiskStorage()
    try:
        cluster_id = settings.cluster_id or await _find_only_cluster(store)
        ring = KeyDirectory(disk, settings.key_directory or "")
        return await restore.restore(store, disk, cluster_id, target, uuid4, ring)
    except KeyUnavailable as error:
        text = f"{error}. --key-directory names the directory."
        raise _RestoreError("KeyUnavailable", text) from None
    except restore.RestoreRefused as error:
        raise _RestoreError(error.kind, str(error)) from None
    except DamagedObject as error:
        raise _RestoreError("ObjectDamaged", f"The object store failed: {error}.") from None
    except StoreError as error:
        raise _RestoreError("StoreFailed", f"The object store failed: {error}.") from None
    except OSError as error:
        text = f"{target.data_dir} was not written: {error}. Empty it, and repeat."
        raise _RestoreError("DiskFailed", text) from None


def _open_store(url: str, endpoint: str, region: str) -> ObjectStore:
    from random import Random

    from shoal.server.tiered.object_store import InvalidStore, open_store
    from shoal.server.tiered.retrying_store import CallLimits, RetryingStore

    try:
        store = open_store(url, endpoint=endpoint, region=region)
    except InvalidStore as error:
        raise _RestoreError("StoreInvalid", str(error)) from None
    return RetryingStore(store, CallLimits(), Random())


async def _find_only_cluster(store: ObjectStore) -> str:
    from shoal.server.tiered.restore import list_clusters

    names = await list_clusters(store)
    if len(names) != 1:
        has = f"backups of {', '.join(names)}" if names else "no backup of a cluster"
        text = f"The store has {has}. Name the cluster with --cluster-id."
        raise _RestoreError("BackupNotFound", text, USAGE)
    return names[0]


def _print_report(report: RestoreReport, target: RestoreTarget, format: Format) -> None:
    rows = [
        {
            "topic": row.topic,
            "partition": row.partition,
            "start": row.start,
            "end": row.end,
            "newest": output.format_timestamp(row.newest_ms),
            "segments": row.segments,
            "missing": row.missing,
            "aborted": row.aborted,
            "tiered": "yes" if row.tiered else "no",
        }
        for row in report.partitions
    ]
    output.print_rows(format, rows, empty="The cluster had no topics.")
    if format is Format.TABLE:
        alone = "" if target.node_id in target.brokers else " It is not a broker: metadata only."
        say(
            f"Node {target.node_id} of cluster {report.cluster_id} is in {target.data_dir}, as of"
            f" {output.format_timestamp(report.written_ms)}.{alone} Restore the other nodes, then "
            "start all."
        )
