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
from shoal.cli.session import USAGE, Failed, guarded
from shoal.cli.terminal import say
from shoal.log.storage import DiskStorage
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.server.tiered.restore import Report, Target
    from shoal.tiered.store import ObjectStore


def _option(metavar: str, help: str) -> Any:
    return typer.Option(metavar=metavar, help=help)


def restore(
    data_dir: Annotated[str | None, _option("DIR", "An empty directory. Config: log.dirs.")] = None,
    url: Annotated[str | None, _option("URL", "Config: shoal.remote.store.url.")] = None,
    endpoint: Annotated[str | None, _option("URL", "Config: shoal.remote.store.endpoint.")] = None,
    region: Annotated[str | None, _option("NAME", "Config: shoal.remote.store.region.")] = None,
    key_directory: Annotated[
        str | None, _option("DIR", "Config: shoal.remote.encryption.key.directory.")
    ] = None,
    clear_backup: Annotated[
        bool,
        typer.Option(
            "--clear-backup", help="With keys, accept a backup that is not encrypted, too."
        ),
    ] = False,
    cluster_id: Annotated[
        str | None,
        _option("ID", "The lost cluster; the only one in the store. Config: shoal.cluster.id."),
    ] = None,
    node_id: Annotated[int | None, _option("N", "The id of this node. Config: node.id.")] = None,
    brokers: Annotated[
        str | None, _option("N,...", "All brokers of the new cluster. Default: this node.")
    ] = None,
    topic: Annotated[list[str] | None, _option("NAME", "Only this topic. Repeatable.")] = None,
    idle: Annotated[str, _option("DURATION", "How long the lost cluster must be silent.")] = "60s",
    config: Annotated[
        Path | None, _option("FILE", "The node's properties file, for options not given.")
    ] = None,
    id: Annotated[
        str, _option("TEXT", "Repeat what was interrupted under this id, not what has ended.")
    ] = "",
    summary: Annotated[
        str, _option("FILE", "Write the result, or the error, as at most 4 KB of JSON.")
    ] = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Restore a node of a lost cluster from the bucket: topics, configs, records and positions.

    Run it on each node of the new cluster with the same options but --node-id and --data-dir. Then
    start the nodes. A node that is not in --brokers is a controller alone, and gets the metadata
    only. It prints up to which offset each partition came back.
    """
    from shoal.server.tiered import restore_summary
    from shoal.server.tiered.restore import Target

    topics = frozenset(topic) if topic else None

    def run() -> None:
        idle_ms = timestamps.duration_ms(idle)
        if idle_ms is None:
            raise Failed(f"--idle {idle!r} is not a duration, such as 60s or PT1M.", USAGE)
        given = _Settings(data_dir, node_id, url, endpoint, region, key_directory, cluster_id)
        found = given if config is None else _with_file(given, config)
        if not found.data_dir or not found.url:
            text = "--data-dir and --url are needed, or a --config FILE that has both."
            raise Failed(text, USAGE)
        node = 1 if found.node_id is None else found.node_id
        ids = _ids(brokers, node, found.roles)
        accepts_clear = clear_backup or not found.key_directory
        path = os.path.abspath(found.data_dir)
        target = Target(path, node, ids, topics, int(idle_ms), id, accepts_clear)
        try:
            report = asyncio.run(_restored(found, target))
        except _Failed as error:
            _write(summary, restore_summary.failure(error.kind, str(error)))
            raise
        _write(summary, restore_summary.success(report))
        _print(report, target, format)

    guarded(run)


class _Settings(NamedTuple):
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


def _with_file(given: _Settings, path: Path) -> _Settings:
    """Return the settings with those of the file, or of the environment, where none is given."""
    from shoal.server.config import InvalidConfig, resolve

    try:
        found = resolve({}, os.environ, path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise Failed(f"Cannot read the configuration file {path}: {reason}.", USAGE) from None
    except InvalidConfig as error:
        raise Failed(str(error), USAGE) from None
    configured = _Settings(
        found.data_dir,
        found.node_id,
        found["shoal.remote.store.url"],
        found["shoal.remote.store.endpoint"],
        found["shoal.remote.store.region"],
        found["shoal.remote.encryption.key.directory"],
        found["shoal.cluster.id"] or None,
        found["process.roles"],
    )
    pairs = zip(given, configured, strict=True)
    return _Settings._make(own if own is not None else its for own, its in pairs)


class _Failed(Failed):
    """A restore that failed; `kind` is a word for programs."""

    def __init__(self, kind: str, sentence: str, code: int = REFUSED) -> None:
        super().__init__(sentence, code)
        self.kind = kind


def _write(path: str, data: bytes) -> None:
    """Write a summary; without a path, do nothing."""
    if not path:
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise Failed(f"{path} was not written: {error.strerror}. Name another --summary.") from None


def _ids(brokers: str | None, node_id: int, roles: Sequence[str] | None) -> list[int]:
    """Return the ids of the brokers. Raises `Failed` if they contradict the node's `roles`."""
    from shoal.server.cluster_config import BROKER

    is_broker = roles is None or BROKER in roles
    if brokers is None:
        if not is_broker:
            text = f"Node {node_id} is a controller (process.roles): name the --brokers."
            raise Failed(text, USAGE)
        return [node_id]
    try:
        ids = sorted({int(part) for part in brokers.split(",")})
    except ValueError:
        text = f"--brokers {brokers!r} is not a list of ids, such as 1,2,3."
        raise Failed(text, USAGE) from None
    if roles is None or is_broker == (node_id in ids):
        return ids
    if is_broker:
        text = f"Node {node_id} is a broker (process.roles), and --brokers lacks it: add it."
    else:
        text = f"Node {node_id} is a controller (process.roles): take it out of --brokers."
    raise Failed(text, USAGE)


async def _restored(given: _Settings, target: Target) -> Report:
    from shoal.server.tiered import restore
    from shoal.server.tiered.key_ring import KeyDirectory
    from shoal.tiered.sealing import KeyUnavailable

    store = _store(given.url or "", given.endpoint or "", given.region or "")
    disk = DiskStorage()
    try:
        known = given.cluster_id or await _only(store)
        ring = KeyDirectory(disk, given.key_directory or "")
        return await restore.restore(store, disk, known, target, uuid4, ring)
    except KeyUnavailable as error:
        text = f"{error}. --key-directory names the directory."
        raise _Failed("KeyUnavailable", text) from None
    except restore.Refused as error:
        raise _Failed(error.kind, str(error)) from None
    except DamagedObject as error:
        raise _Failed("ObjectDamaged", f"The object store failed: {error}.") from None
    except StoreError as error:
        raise _Failed("StoreFailed", f"The object store failed: {error}.") from None
    except OSError as error:
        text = f"{target.data_dir} was not written: {error}. Empty it, and repeat."
        raise _Failed("DiskFailed", text) from None


def _store(url: str, endpoint: str, region: str) -> ObjectStore:
    from random import Random

    from shoal.server.tiered.object_store import InvalidStore, open_store
    from shoal.server.tiered.retrying_store import CallLimits, RetryingStore

    try:
        store = open_store(url, endpoint=endpoint, region=region)
    except InvalidStore as error:
        raise _Failed("StoreInvalid", str(error)) from None
    return RetryingStore(store, CallLimits(), Random())


async def _only(store: ObjectStore) -> str:
    from shoal.server.tiered.restore import clusters

    found = await clusters(store)
    if len(found) != 1:
        has = f"backups of {', '.join(found)}" if found else "no backup of a cluster"
        text = f"The store has {has}. Name the cluster with --cluster-id."
        raise _Failed("BackupNotFound", text, USAGE)
    return found[0]


def _print(report: Report, target: Target, format: Format) -> None:
    rows = [
        {
            "topic": row.topic,
            "partition": row.partition,
            "start": row.start,
            "end": row.end,
            "newest": output.when(row.newest_ms),
            "segments": row.segments,
            "missing": row.missing,
            "aborted": row.aborted,
            "tiered": "yes" if row.tiered else "no",
        }
        for row in report.partitions
    ]
    output.rows(format, rows, empty="The cluster had no topics.")
    if format is Format.TABLE:
        alone = "" if target.node_id in target.brokers else " It is not a broker: metadata only."
        say(
            f"Node {target.node_id} of cluster {report.cluster_id} is in {target.data_dir}, as of"
            f" {output.when(report.written_ms)}.{alone} Restore the other nodes, then start all."
        )
