"""`shoal storage`: what tiered topics have in the object store. `storage_restore` adds `restore`.

`status` and `segments` read `__remote_log_metadata`. `check` lists the objects as well, with the
credentials of its own environment, and compares both.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shoal.cli import output, timestamps
from shoal.cli.commands import storage_restore
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app, require_shoal
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.topics import OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.tiered import audit, keys, manifest
from shoal.tiered.metadata_records import TOPIC, RemoteLogSegmentState
from shoal.tiered.remote_logs import RemoteLogs
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import ObjectMissing, ObjectStore, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from shoal.client.net.metadata import Topic
    from shoal.tiered.remote_log import RemoteLog

app = make_app("Show and check the object store, and restore a lost cluster.")
app.command("restore")(storage_restore.restore)
_URL, _ENDPOINT, _REGION = (f"shoal.remote.store.{name}" for name in ("url", "endpoint", "region"))
_GRACE = "shoal.remote.orphan.grace.ms"
#: The config of a topic that makes it tiered.
_TIERED = "remote.storage.enable"
_WHAT = "keys in __remote_log_metadata, from which this command reads"
Topics = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Default: all tiered topics.")
]


class StoreOptions(NamedTuple):
    """The options that name the store, if the brokers' configs do not suffice here."""

    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help=f"The store. Default: {_URL} of the brokers."),
    ] = None
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help=f"Default: {_ENDPOINT} of the brokers.")
    ] = None
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Default: {_REGION} of the brokers.")
    ] = None


@command(app, "status")
async def status(
    client: Client, topics: Topics = None, format: FormatOption = Format.TABLE
) -> None:
    """Show what each partition has in the store, and which records are not there yet."""
    await require_shoal(client, _WHAT)
    tiered = await _find_tiered(client, topics)
    logs = await _read_logs(client)
    partitions = [TopicPartition(t.name, p.index) for t in tiered for p in t.partitions]
    ids = {topic.name: topic.topic_id for topic in tiered}
    specs = (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL, OffsetSpec.LATEST)
    listed = [await client.admin.topics.offsets(dict.fromkeys(partitions, spec)) for spec in specs]
    rows = []
    for partition in partitions:
        start, local_start, end = (_get_offset(offsets[partition]) for offsets in listed)
        remote = logs[ids[partition.topic], partition.partition]  # type: ignore[index]
        copied_to = max(remote.end_offset + 1, start or 0)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "start": start,
                "local_start": local_start,
                "copied_to": copied_to,
                "end": end,
                "not_copied": None if end is None else max(0, end - copied_to),
                "segments": len(remote),
                "bytes": remote.size_bytes,
                "copying": len(remote.find_in_state(RemoteLogSegmentState.COPY_SEGMENT_STARTED)),
                "deleting": len(remote.find_in_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED)),
            }
        )
    empty = (
        "No topic is tiered. Enable it with `shoal configs set topic NAME " + f"{_TIERED}=true`."
    )
    output.print_rows(format, rows, empty=empty, expendable=("copying", "deleting"))


def _get_offset(result: Any) -> int | None:
    return None if isinstance(result, KafkaError) else result.offset


@command(app, "segments")
async def segments(
    client: Client,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only this partition.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the remote segments of a topic, with the keys of their objects."""
    await require_shoal(client, _WHAT)
    (description,) = await _find_tiered(client, [topic])
    cluster = await client.admin.describe_cluster()
    logs = await _read_logs(client)
    rows = []
    for index in range(len(description.partitions)) if partition is None else partition:
        description.get_partition(index)
        assert description.topic_id is not None
        remote = logs[description.topic_id, index]
        prefix = keys.format_partition_prefix(
            cluster.cluster_id, topic, description.topic_id, index
        )
        rows += [
            {
                "partition": index,
                "base_offset": segment.base_offset,
                "end_offset": segment.end_offset,
                "bytes": segment.log_size,
                "state": state.name,
                "newest": output.format_timestamp(segment.max_timestamp),
                "broker": segment.broker_id,
                "object_bytes": segment.object_size or None,
                "key": keys.format_segment_key(prefix, segment.base_offset, segment.segment_id),
            }
            for state, segment in _list_by_state(remote)
        ]
    columns = ("partition", "base_offset", "end_offset", "bytes", "state", "newest", "key")
    output.print_rows(format, rows, columns, empty=f"Topic {topic} has no remote segments.")


def _list_by_state(remote: RemoteLog) -> list[tuple[RemoteLogSegmentState, Any]]:
    unfinished_states = (
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    )
    entries = [(RemoteLogSegmentState.COPY_SEGMENT_FINISHED, segment) for segment in remote]
    entries += [
        (state, segment) for state in unfinished_states for segment in remote.find_in_state(state)
    ]
    return sorted(entries, key=lambda pair: (pair[1].base_offset, pair[0]))


@command(app, "check")
async def check(
    client: Client,
    topics: Topics = None,
    of: StoreOptions = StoreOptions(),
    repair: Annotated[
        bool, typer.Option("--repair", help="Delete orphans whose grace period is over.")
    ] = False,
    delete_gone_topics: Annotated[
        bool,
        typer.Option(
            "--delete-gone-topics",
            help="Delete the objects of topics that do not exist. Not in a cluster that has lost"
            " its metadata: they are what is left of its records.",
        ),
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help=f"Grace period. Default: {_GRACE} of the brokers."),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Compare the objects with the metadata both ways. Exits with 1 if something is wrong.

    It finds objects that no metadata names (orphan), segments without an object (missing),
    manifests that are missing, damaged or not current (manifest), and objects of topics that do not
    exist (topic gone).
    """
    await require_shoal(client, _WHAT)
    tiered = await _find_tiered(client, topics)
    configs = await _read_broker_configs(client)
    grace_ms = int(configs[_GRACE] or 0)
    if grace is not None:
        parsed_ms = timestamps.parse_duration_ms(grace)
        if parsed_ms is None:
            raise CommandError(f"--grace {grace!r} is not a duration, such as 12h or PT12H.", USAGE)
        grace_ms = int(parsed_ms)
    store = _open_store(configs, of)
    cluster = await client.admin.describe_cluster()
    checker = _Checker(store, cluster.cluster_id, int(time.time() * 1000), grace_ms)
    try:
        for topic in tiered:
            # The objects of a partition are listed before the metadata is read: a segment that is
            # copied in between is not missing.
            await checker.list_topic(topic)
        logs = await _read_logs(client)
        for topic in tiered:
            await checker.check_topic(topic, logs)
        if topics is None:
            everything = await client.admin.topics.list(internal=True)
            await checker.check_gone({topic.topic_id for topic in everything.values()})
        repairs = {"orphan": repair, "topic gone": delete_gone_topics}
        await checker.delete([problem for problem, is_wanted in repairs.items() if is_wanted])
    except StoreError as error:
        raise CommandError(f"The object store failed: {error}.") from None
    rows = checker.rows
    columns = ("problem", "topic", "partition", "offsets", "bytes", "written", "done", "key")
    output.print_rows(format, rows, columns, empty=f"No problems in {checker.objects} objects.")
    unsolved = sum(1 for row in rows if not row["done"])
    if unsolved:
        raise CommandError(f"{unsolved} problems in {checker.objects} objects. {_REMEDIES}")


_REMEDIES = (
    "Leaders write manifests and lost metadata again at their next check. --repair deletes orphans "
    "after their grace period. For a missing object, restore it from an older version in the "
    "bucket, or delete the records with `shoal topics delete-records`."
)


class _Checker:
    """Collects the problems of all partitions."""

    def __init__(self, store: ObjectStore, cluster_id: str, now_ms: int, grace_ms: int) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._listed: dict[str, list[Any]] = {}
        self._due: dict[str, dict[str, Any]] = {}
        self.rows: list[dict[str, Any]] = []
        self.objects = 0

    def _make_prefix(self, topic: Topic, index: int) -> str:
        assert topic.topic_id is not None
        return keys.format_partition_prefix(self._cluster_id, topic.name, topic.topic_id, index)

    async def list_topic(self, topic: Topic) -> None:
        for partition in topic.partitions:
            prefix = self._make_prefix(topic, partition.index)
            self._listed[prefix] = [info async for info in self._store.list_objects(prefix)]

    async def check_topic(self, topic: Topic, logs: RemoteLogs) -> None:
        for partition in topic.partitions:
            prefix = self._make_prefix(topic, partition.index)
            assert topic.topic_id is not None
            remote = logs[topic.topic_id, partition.index]
            location = {"topic": topic.name, "partition": partition.index}
            infos = self._listed.pop(prefix)
            comparison = audit.compare(infos, remote)
            self.objects += len(infos)
            for info in comparison.orphans:
                self._add_deletable("orphan", location, info)
            for segment in comparison.missing:
                key = keys.format_segment_key(prefix, segment.base_offset, segment.segment_id)
                if not await self._is_whole(key, segment.object_size):
                    offsets = f"{segment.base_offset}-{segment.end_offset}"
                    self._add("missing", location, key, offsets, segment.object_size)
            await self._check_manifest(location, prefix, remote)

    async def _is_whole(self, key: str, size: int) -> bool:
        try:
            return await self._store.get_size(key) == size
        except ObjectMissing:
            return False

    async def _check_manifest(
        self, location: dict[str, Any], prefix: str, remote: RemoteLog
    ) -> None:
        key = keys.format_manifest_key(prefix)
        try:
            decoded = manifest.decode(await self._store.get(key))
        except ObjectMissing:
            if len(remote):
                self._add("manifest missing", location, key)
            return
        except DamagedObject:
            self._add("manifest damaged", location, key)
            return
        segment_ids = {segment.segment_id for segment in decoded.segments}
        finished = {segment.segment_id for segment in remote}
        if not finished <= segment_ids:
            self._add(f"manifest without {len(finished - segment_ids)} segments", location, key)

    async def check_gone(self, topic_ids: set[UUID | None]) -> None:
        """Find objects of topics that do not exist."""
        for prefix in await self._store.list_children(self._cluster_id):
            topic = keys.parse_topic(prefix)
            if topic is None or topic[1] in topic_ids:
                continue
            async for info in self._store.list_objects(prefix):
                self.objects += 1
                location = {"topic": topic[0], "partition": None}
                self._add_deletable("topic gone", location, info)

    def _add_deletable(self, problem: str, location: dict[str, Any], info: Any) -> None:
        row = self._add(problem, location, info.key, None, info.size, info.modified_ms)
        if self._now_ms - info.modified_ms >= self._grace_ms:
            self._due[info.key] = row

    def _add(
        self,
        problem: str,
        location: dict[str, Any],
        key: str,
        offsets: str | None = None,
        size: int | None = None,
        written_ms: int = -1,
    ) -> dict[str, Any]:
        row = {
            "problem": problem,
            **location,
            "offsets": offsets,
            "bytes": size,
            "written": output.format_timestamp(written_ms),
            "done": None,
            "key": key,
        }
        self.rows.append(row)
        return row

    async def delete(self, problems: Collection[str]) -> None:
        """Delete the objects with these problems whose grace period is over."""
        due = {key: row for key, row in self._due.items() if row["problem"] in problems}
        if due:
            await self._store.delete(list(due))
            for row in due.values():
                row["done"] = "deleted"


async def _find_tiered(client: Client, names: Iterable[str] | None) -> list[Topic]:
    """Return the tiered topics, or those that are named. Raises `CommandError` if one is not
    tiered."""
    if names is None:
        described = await client.admin.topics.list()
    else:
        described = expect(await client.admin.topics.describe(names))
    resources = {
        ConfigResource(ConfigResourceType.TOPIC, name): topic for name, topic in described.items()
    }
    configs = expect(await client.admin.configs.describe(resources, keys=[_TIERED]))
    out = []
    for resource, topic in sorted(resources.items()):
        if configs[resource][_TIERED].value == "true":
            out.append(topic)
        elif names is not None:
            raise CommandError(
                f"Topic {topic.name} is not tiered. Enable it with "
                f"`shoal configs set topic {topic.name} {_TIERED}=true`."
            )
    return out


async def _read_logs(client: Client) -> RemoteLogs:
    """Return what `__remote_log_metadata` has now."""
    logs = RemoteLogs()
    described = await client.admin.topics.describe([TOPIC])
    topic = described[TOPIC]
    if isinstance(topic, KafkaError):
        return logs
    partitions = [TopicPartition(TOPIC, partition.index) for partition in topic.partitions]
    starts, ends = [
        expect(await client.admin.topics.offsets(dict.fromkeys(partitions, spec)))
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    ]
    for topic_partition in partitions:
        start, end = starts[topic_partition].offset, ends[topic_partition].offset
        if start == end:
            continue
        async for fetched in client.fetcher.fetch_range(*topic_partition, start, end - 1):
            for record in fetched.records():
                logs.replay(record.key, record.value)
    return logs


async def _read_broker_configs(client: Client) -> dict[str, str | None]:
    """Return the configs of the store, which are the same on all brokers."""
    cluster = await client.admin.describe_cluster()
    resource = ConfigResource(ConfigResourceType.BROKER, str(cluster.brokers[0].node_id))
    names = [_URL, _ENDPOINT, _REGION, _GRACE]
    configs = expect(await client.admin.configs.describe([resource], keys=names))
    return {name: entry.value for name, entry in configs[resource].items()}


def _open_store(configs: dict[str, str | None], options: StoreOptions) -> ObjectStore:
    from random import Random

    from shoal.server.tiered.object_store import InvalidStore, open_store
    from shoal.server.tiered.retrying_store import CallLimits, RetryingStore

    url = options.url or configs[_URL]
    if not url:
        raise CommandError(f"The brokers have no object store: {_URL} is empty.")
    own = options.url is not None
    endpoint = options.endpoint if options.endpoint is not None or own else configs[_ENDPOINT]
    region = options.region if options.region is not None or own else configs[_REGION]
    try:
        store = open_store(url, endpoint=endpoint or "", region=region or "")
    except InvalidStore as error:
        raise CommandError(str(error)) from None
    return RetryingStore(store, CallLimits(attempts=2), Random())
