"""`shoal storage restore`: the data directory of a node, from what a lost cluster left in a bucket.

It needs no cluster: it runs on each node of the new one, before it starts.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from shoal.cli import output, timestamps
from shoal.cli.failures import REFUSED
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, guarded
from shoal.log.storage import DiskStorage
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import StoreError

if TYPE_CHECKING:
    from shoal.server.tiered.restore import Report, Target
    from shoal.tiered.store import ObjectStore


def restore(
    data_dir: Annotated[str, typer.Option(metavar="DIR", help="An empty directory.")],
    url: Annotated[str, typer.Option(metavar="URL", help="The store: shoal.remote.store.url.")],
    endpoint: Annotated[str, typer.Option(metavar="URL", help="shoal.remote.store.endpoint.")] = "",
    region: Annotated[str, typer.Option(metavar="NAME", help="shoal.remote.store.region.")] = "",
    key_directory: Annotated[
        str, typer.Option(metavar="DIR", help="shoal.remote.encryption.key.directory.")
    ] = "",
    cluster_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The lost cluster. Default: the only one in the store."),
    ] = None,
    node_id: Annotated[int, typer.Option(metavar="N", help="The id of this node.")] = 1,
    brokers: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="The brokers of the new cluster. Default: this node."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this topic. Repeatable.")
    ] = None,
    idle: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the lost cluster must be silent.")
    ] = "60s",
    id: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Repeat what was interrupted under this id, and nothing that has ended.",
        ),
    ] = "",
    summary: Annotated[
        str,
        typer.Option(metavar="FILE", help="Write the result, or the error, as at most 4 KB JSON."),
    ] = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Restore a node of a lost cluster from the bucket: topics, configs, records and positions.

    Run it on each node of the new cluster with the same options but --node-id and --data-dir. Then
    start the nodes. It prints up to which offset each partition came back.
    """
    from shoal.server.tiered import restore_summary
    from shoal.server.tiered.restore import Target

    idle_ms = timestamps.duration_ms(idle)
    ids = _ids(brokers, node_id)
    topics = frozenset(topic) if topic else None

    def run() -> None:
        if idle_ms is None:
            raise Failed(f"--idle {idle!r} is not a duration, such as 60s or PT1M.", USAGE)
        target = Target(os.path.abspath(data_dir), node_id, ids, topics, int(idle_ms), id)
        try:
            store = _store(url, endpoint, region)
            report = asyncio.run(_restored(store, key_directory, cluster_id, target))
        except _Failed as error:
            _write(summary, restore_summary.failure(error.kind, str(error)))
            raise
        _write(summary, restore_summary.success(report))
        _print(report, target, format)

    guarded(run)


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


def _ids(brokers: str | None, node_id: int) -> list[int]:
    if brokers is None:
        return [node_id]
    try:
        return sorted({int(part) for part in brokers.split(",")})
    except ValueError:
        raise typer.BadParameter(f"{brokers!r} is not a list of ids, such as 1,2,3") from None


async def _restored(
    store: ObjectStore, key_directory: str, cluster_id: str | None, target: Target
) -> Report:
    from shoal.server.tiered import restore
    from shoal.server.tiered.key_ring import KeyDirectory
    from shoal.tiered.sealing import KeyUnavailable

    disk = DiskStorage()
    try:
        known = cluster_id or await _only(store)
        ring = KeyDirectory(disk, key_directory)
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
        print(
            f"Node {target.node_id} of cluster {report.cluster_id} is in {target.data_dir}, as of"
            f" {output.when(report.written_ms)}. Restore the other nodes, then start all."
        )
