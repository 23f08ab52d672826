"""The pages: each handler turns a request into a template and its variables.

Live pages have a second template for the part that changes, which `/live/…` streams.
"""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues.gaps import find_gaps
from shoal.client.queues.held_keys import HeldKey, find_held_keys
from shoal.client.queues.key_range_owners import WHOLE, find_group_owners
from shoal.client.queues.timestamps import parse_timestamp
from shoal.console import figures
from shoal.console.access.security import HEADERS, LOGIN, USER
from shoal.console.charts import ChartLine, draw_chart
from shoal.console.reading import dead_letters, payloads, records
from shoal.console.sampling import holdings, queues, tenants
from shoal.console.sampling.queues import Level, MonitoredQueue
from shoal.console.sampling.sample import ClusterSample, MetricsSource
from shoal.dead_letters.dead_letter_topics import TOPIC, find_bounds
from shoal.dead_letters.records import REASONS, DeadLetterFilter
from shoal.record.records import format_header_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.admin.configs import ConfigEntry
    from shoal.client.admin.groups import GroupDescription
    from shoal.client.client import Client
    from shoal.client.net.metadata import Topic
    from shoal.client.queues.lag import Position
    from shoal.console.access.actors import Actors
    from shoal.console.access.openid import OpenIdLogin
    from shoal.console.charts import Chart
    from shoal.console.reading.views import RecordView
    from shoal.console.sampling.history import Hour
    from shoal.console.sampling.holdings import Holdings
    from shoal.console.sampling.kubernetes import Kubernetes
    from shoal.console.sampling.prometheus import Prometheus
    from shoal.console.sampling.sampler import Sampler

#: Rows of a table on one page of it.
ROWS_MAX = 100
#: Groups in which the page of a record looks for it.
STANDING_MAX = 50
#: ShareConsumers that have a chart.
CHARTS_MAX = 20
#: Held keys that a group's page shows.
HELD_MAX = 20
_NO_NUMBER = float("nan")


class Page(NamedTuple):
    """A template and its variables."""

    template: str
    context: Mapping[str, object]


class Pages:
    """The pages over one cluster."""

    def __init__(
        self,
        client: Client,
        sampler: Sampler,
        actors: Actors,
        view: RecordView,
        kubernetes: Kubernetes | None,
        prometheus: Prometheus | None,
    ) -> None:
        self._client = client
        self._sampler = sampler
        self._actors = actors
        self._view = view
        self._kubernetes = kubernetes
        self._prometheus = prometheus
        #: The holdings of groups in one sample: several pages of a group read them once.
        self._holdings: dict[str, Holdings | None] = {}
        self._holdings_at_ms = -1

    def make_base(self, request: web.Request) -> dict[str, object]:
        """Return the variables that every page needs."""
        sampler, sample = self._sampler, self._sampler.sample
        return {
            "request": request,
            "sample": sample,
            "problem": sampler.error,
            "problem_since": figures.format_clock(sampler.error_since_ms) if sampler.error else "",
            "interval_s": sampler.interval_s,
            "time": sampler.time,
            "kafka": sample is not None and sample.metrics is MetricsSource.UNSUPPORTED,
            "silent": sample is not None and sample.metrics is MetricsSource.SILENT,
            "is_live": False,
            "user": request.get(USER, ""),
            "can_log_out": LOGIN in request,
            "on_kubernetes": self._kubernetes is not None,
            "why_off": self._actors.why_off,
            "can_act": not self._actors.why_off,
        }

    async def show_logged_out(self, login: OpenIdLogin, request: web.Request) -> Page:
        """What remains to do after a log-out. It shows nothing of the cluster."""
        nothing = {"sample": None, "problem": None, "can_act": False, "why_off": "", "time": ""}
        more = {"log_out_url": login.provider_log_out}
        return Page("logged_out", {**self.make_base(request), **nothing, **more})

    # The overview

    async def show_overview(self, request: web.Request) -> Page:
        """All queues and the health of the cluster."""
        context = self.make_base(request)
        sample = self._sampler.sample
        if sample is None:
            return Page("overview", context)
        words = request.query.get("q", "").strip()
        matching = [q for q in self._sampler.queues if words in q.group or words in q.topic]
        rows, paging = _paginate(matching, request)
        return Page(
            "overview",
            context
            | {
                "queues": rows,
                "paging": paging,
                "words": words,
                "count": len(self._sampler.queues),
                "troubled": sum(q.state.level >= Level.WARNING for q in self._sampler.queues),
                "disks": _list_disks(sample),
                "ages": {(q.group, q.topic): _compute_age_s(sample, q.oldest_ms) for q in rows},
            },
        )

    # Groups

    async def show_group(self, request: web.Request) -> Page:
        """One group. A share group has bars, history and causes."""
        context = self.make_base(request)
        sample, name = self._sampler.sample, _require(request, "id")
        context["name"] = name
        if not (await self._may_exist(name) if sample is None else name in sample.listed):
            raise web.HTTPNotFound(text=f"There is no group {name!r}.")
        if sample is None:
            return Page("group", context)
        positions = sample.positions.get(name, [])
        if name in sample.groups:
            context |= await self._describe_share_group(sample, name)
        else:
            description = (await self._client.admin.groups.describe([name]))[name]
            if isinstance(description, KafkaError):
                raise description
            context["group"] = description
            context |= await self._make_key_ranges(description, positions)
        entries = await self._read_configs(ConfigResourceType.GROUP, name)
        partitions = sample.numbers.partitions if sample.numbers else {}
        return Page(
            "group",
            context
            | {
                "is_share": name in sample.groups,
                "positions": [
                    (p, partitions.get((name, p.partition)), _compute_partition_age_s(sample, p))
                    for p in positions
                ],
                "configs": entries,
                "letter_topic": _find_value(entries, TOPIC),
            }
            | self._describe_tenants(sample, name, entries),
        )

    def _describe_tenants(
        self, sample: ClusterSample, name: str, entries: list[ConfigEntry] | str
    ) -> dict[str, object]:
        """Return the tenants of a group that tells them apart; None for other groups."""
        by = _find_value(entries, tenants.FAIRNESS_BY)
        if by in ("", "none"):
            return {"tenants": None, "are_tenants_masked": False}
        topics = {p.partition.topic for p in sample.positions.get(name, ())}
        if tenants.are_masked(self._view.masks, topics, by):
            return {"tenants": [], "are_tenants_masked": True}
        records = None if sample.numbers is None else sample.numbers.tenants.get(name)
        paused = tenants.split_paused(_find_value(entries, tenants.PAUSED))
        rows = tenants.list_tenants(records, paused)
        return {"tenants": rows, "are_tenants_masked": False}

    async def _may_exist(self, group: str) -> bool:
        """Ask the cluster for a group before the first sample. Return True without an answer."""
        try:
            return group in await self._client.admin.groups.list()
        except ClientError:
            return True

    async def _make_key_ranges(
        self, group: GroupDescription, positions: list[Position]
    ) -> dict[str, object]:
        """Return the key ranges of a group, and the gaps of partitions without any."""
        name = group.group_id
        range_owners = await find_group_owners(self._client.admin, [group], {name: positions})
        shown = [
            owner
            for owner in range_owners.get(name, ())
            if owner.ranges != WHOLE or owner.finished.count
        ]
        return {
            "key_ranges": [
                (owner.to_row(), next(iter(find_gaps([owner])), None)) for owner in shown[:ROWS_MAX]
            ],
            "key_ranges_count": len(shown),
        }

    async def _describe_share_group(self, sample: ClusterSample, name: str) -> dict[str, object]:
        group_queues = [queue for queue in self._sampler.queues if queue.group == name]
        group_queues.sort(key=lambda queue: queue.topic)
        positions = sample.positions.get(name, [])
        held_count = sum(
            last - first + 1 for p in positions for first, last in p.key_holder_offsets
        )
        in_hands = await self._read_holdings(sample, name)
        hours, why = await self._read_hours(sample, group_queues)
        return {
            "group": sample.groups[name],
            "queues": group_queues,
            "holdings": in_hands,
            "is_paused": name in sample.paused,
            "causes": queues.find_causes(sample, name, group_queues, in_hands),
            "skipped": queues.describe_skipped(sample, name),
            "charts": {topic: _draw_charts(topic, hour) for topic, hour in hours.items()},
            "from_prometheus": self._prometheus is not None and bool(group_queues) and not why,
            "why_from_memory": why,
            "ages": {(q.group, q.topic): _compute_age_s(sample, q.oldest_ms) for q in group_queues},
            "held_count": held_count,
            "held": await self._read_held_keys(positions) if held_count else [],
        }

    async def _read_held_keys(self, positions: list[Position]) -> list[HeldKey]:
        """Return the first held keys, with what may be shown of them."""
        keys = await find_held_keys(self._client, positions, keys_max=HELD_MAX)
        return [
            replace(
                held_key, key=await self._view.prepare_key(held_key.partition.topic, held_key.key)
            )
            for held_key in keys[:HELD_MAX]
        ]

    async def _read_holdings(self, sample: ClusterSample, name: str) -> Holdings | None:
        if sample.metrics is MetricsSource.UNSUPPORTED:
            return None
        if self._holdings_at_ms != sample.at_ms:
            self._holdings_at_ms = sample.at_ms
            self._holdings = {}
        if name not in self._holdings:
            places = [p.partition for p in sample.positions.get(name, ()) if p.lag != 0]
            self._holdings[name] = await holdings.read_holdings(self._client, name, places)
        return self._holdings[name]

    async def _read_hours(
        self, sample: ClusterSample, group_queues: list[MonitoredQueue]
    ) -> tuple[dict[str, Hour], str]:
        """Return the history of a group's queues by topic: what Prometheus has, and of the others
        what the console has kept, with a sentence that says why."""
        history = self._sampler.history
        hours = {
            q.topic: history.get_series(q.group, q.topic).make_hour(sample.at_s)
            for q in group_queues
        }
        if self._prometheus is None or not group_queues:
            return hours, ""
        answer = await self._prometheus.read_group(group_queues[0].group, list(hours))
        return {**hours, **answer.hours}, answer.why

    async def _read_configs(self, kind: ConfigResourceType, name: str) -> list[ConfigEntry] | str:
        """Return the configs of a resource in order of their names, or why not."""
        resource = ConfigResource(kind, name)
        try:
            entries = (await self._client.admin.configs.describe([resource], synonyms=True))[
                resource
            ]
        except ClientError as error:
            return str(error)
        if isinstance(entries, KafkaError):
            return str(entries)
        # Those that were set come first.
        return sorted(entries.values(), key=lambda entry: (entry.is_default, entry.name))

    # Topics

    async def show_topics(self, request: web.Request) -> Page:
        """All topics."""
        context = self.make_base(request)
        sample = self._sampler.sample
        if sample is None:
            return Page("topics", context)
        words = request.query.get("q", "").strip()
        internal = request.query.get("internal") == "1"
        matching = [
            topic
            for name, topic in sorted(sample.topics.items())
            if words in name and (internal or not topic.internal)
        ]
        rows, paging = _paginate(matching, request)
        groups: dict[str, int] = {}
        for positions in sample.positions.values():
            for name in {p.partition.topic for p in positions}:
                groups[name] = groups.get(name, 0) + 1
        return Page(
            "topics",
            context
            | {
                "topics": rows,
                "paging": paging,
                "words": words,
                "internal": internal,
                "groups": groups,
                "lacking": {t.name: _find_lacking(t) for t in rows},
            },
        )

    async def show_topic(self, request: web.Request) -> Page:
        """One topic: partitions, configs, groups, and its records."""
        context = self.make_base(request)
        name = _require(request, "name")
        topic = expect(await self._client.admin.topics.describe([name]))[name]
        query, mistake = _parse_query(request)
        browsed: records.BrowseResult | None = None
        failure = ""
        if not mistake:
            try:
                browsed = await records.browse(self._client, self._view, name, query)
            except ClientError as error:
                failure = str(error)
        limits: dict[TopicPartition, tuple[int, int]] = {}
        try:
            limits = await find_bounds(self._client.admin, name)
        except ClientError as error:
            failure = failure or str(error)
        sample = self._sampler.sample
        on_it = [
            (group, sum(p.lag or 0 for p in mine))
            for group, positions in (sample.positions if sample else {}).items()
            if (mine := [p for p in positions if p.partition.topic == name])
        ]
        return Page(
            "topic",
            context
            | {
                "topic": topic,
                "lacking": _find_lacking(topic),
                "limits": limits,
                "sizes": await self._measure_sizes(topic),
                "groups": on_it,
                "configs": await self._read_configs(ConfigResourceType.TOPIC, name),
                "query": query,
                "given": dict(request.query),
                "mistake": mistake,
                "failure": failure,
                "browsed": browsed,
                "rule": self._view.masks.find_rule([name]),
            },
        )

    async def _measure_sizes(self, topic: Topic) -> dict[int, int]:
        """Return the bytes of each partition's largest replica; empty if they may not be seen."""
        nodes = sorted({node for p in topic.partitions for node in p.isr})
        places = [TopicPartition(topic.name, p.index) for p in topic.partitions]
        sizes: dict[int, int] = {}
        try:
            dirs_by_node = await self._client.admin.log_dirs(nodes, only=places)
        except ClientError:
            return {}
        for folder in (log_dir for log_dirs in dirs_by_node.values() for log_dir in log_dirs):
            for partition, size in folder.partitions.items():
                if partition.topic == topic.name:
                    sizes[partition.partition] = max(size, sizes.get(partition.partition, 0))
        return sizes

    async def show_record(self, request: web.Request) -> Page:
        """One record, whole."""
        context = self.make_base(request)
        partition, offset = _parse_place(request)
        record = await records.read_record(self._client, self._view, partition, offset)
        if record is None:
            raise web.HTTPNotFound(text=f"{partition} has no record at offset {offset}.")
        text_format = request.query.get("as", "auto")
        sample = self._sampler.sample
        standing = [
            (group, p)
            for group, positions in (sample.positions if sample else {}).items()
            for p in positions
            if p.partition == partition
        ]
        shares = set(sample.groups) if sample else set()
        letter_topics = sample.letter_topics if sample else {}
        in_flight = {
            group: await holdings.describe_standing(
                self._client,
                group,
                partition,
                offset,
                may_show_reason=self._view.masks.may_show_reason(
                    {partition.topic, letter_topics.get(group, partition.topic)}, record
                ),
            )
            for group, p in standing[:STANDING_MAX]
            if group in shares and p.offset is not None and p.offset <= offset
        }
        return Page(
            "record",
            context
            | {
                "where": partition,
                "record": record,
                "key": payloads.render_payload(record.key, text_format),
                "value": payloads.render_payload(record.value, text_format),
                "headers": [
                    (format_header_key(n), payloads.render_payload(v)) for n, v in record.headers
                ],
                "wanted": text_format,
                "formats": payloads.FORMATS,
                "standing": standing,
                "in_flight": in_flight,
                "shares": shares,
                "letter_topics": letter_topics,
            },
        )

    async def read_payload(self, request: web.Request) -> tuple[web.StreamResponse, bytes]:
        """One record's value as a download, with its masked fields masked, and its head."""
        partition, offset = _parse_place(request)
        record = await records.read_record(self._client, self._view, partition, offset)
        if record is None or record.value is None:
            raise web.HTTPNotFound(text=f"{partition} has no value at offset {offset}.")
        if isinstance(record.value, payloads.MaskedPayload) and record.value.is_whole:
            raise web.HTTPForbidden(text=f"The value cannot be downloaded. {record.value.why}")
        response = web.StreamResponse(
            headers={
                **HEADERS,
                "Cache-Control": "no-store",
                "Content-Type": "application/octet-stream",
                "Content-Disposition": f'attachment; filename="record-{offset}.bin"',
            }
        )
        return response, payloads.get_raw(record.value)

    # Kubernetes

    async def show_consumers(self, request: web.Request) -> Page:
        """ShareConsumers, and the conditions and events of all kinds."""
        context = self.make_base(request)
        kubernetes = self._kubernetes
        if kubernetes is None or kubernetes.snapshot is None:
            return Page("consumers", {**context, "seen": None})
        snapshot = kubernetes.snapshot
        reported = [consumer for consumer in snapshot.consumers if consumer.wanted is not None]
        return Page(
            "consumers",
            context
            | {
                "seen": snapshot,
                "charts": [kubernetes.make_chart(consumer) for consumer in reported[:CHARTS_MAX]],
                "namespaces": kubernetes.settings.namespaces,
                "ROWS_MAX": ROWS_MAX,
            },
        )

    # Dead letters

    async def show_dead_letters(self, request: web.Request) -> Page:
        """The topics of dead letters, the exceptions in all of them, or the letters of one."""
        context = self.make_base(request)
        name = request.query.get("topic", "")
        if not name and request.query.get("by") == "exception":
            exceptions = await dead_letters.read_exceptions(self._client, self._view)
            return Page("exceptions", context | {"letters": exceptions})
        if not name:
            topics = await dead_letters.list_topics(self._client)
            return Page("letter_topics", context | {"topics": topics})
        fields = ("reason", "exception", "group", "source", "same")
        chosen = {field: request.query.get(field, "") for field in fields}
        letter_filter = DeadLetterFilter(
            keys=[await self._find_same_key(name, chosen["same"])] if chosen["same"] else (),
            reasons=[chosen["reason"]] if chosen["reason"] else (),
            exceptions=[chosen["exception"]] if chosen["exception"] else (),
            groups=[chosen["group"]] if chosen["group"] else (),
            source_topics=[chosen["source"]] if chosen["source"] else (),
        )
        return Page(
            "letters",
            context
            | {
                "name": name,
                "chosen": chosen,
                "letters": await dead_letters.read_dead_letters(
                    self._client, self._view, name, letter_filter
                ),
                "meanings": REASONS,
            },
        )

    async def _find_same_key(self, topic: str, place: str) -> bytes | None:
        try:
            return await dead_letters.find_same_key(self._client, self._view, topic, place)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None

    async def show_dead_letter(self, request: web.Request) -> Page:
        """One dead letter."""
        context = self.make_base(request)
        partition, offset = _parse_place(request)
        letter = await dead_letters.read_dead_letter(self._client, partition, offset)
        if letter is None:
            raise web.HTTPNotFound(text=f"{partition} has no dead letter at offset {offset}.")
        text_format = request.query.get("as", "auto")
        redriven = await dead_letters.read_redriven(self._client, partition.topic)
        letter = await dead_letters.mask_letter(self._view, letter)
        record = letter.record
        return Page(
            "letter",
            context
            | {
                "letter": letter,
                "stacktrace": payloads.render_payload(letter.failure.stacktrace.encode()),
                "where": partition,
                "key": payloads.render_payload(record.key, text_format),
                "value": payloads.render_payload(record.value, text_format),
                "headers": [
                    (format_header_key(n), payloads.render_payload(v)) for n, v in record.headers
                ],
                "wanted": text_format,
                "formats": payloads.FORMATS,
                "is_redriven": partition.partition in redriven
                and offset in redriven[partition.partition],
            },
        )


def _require(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        raise web.HTTPBadRequest(text=f"The address lacks {name}=. Open the page from a list.")
    return value


def _parse_number(request: web.Request, name: str) -> int:
    text = _require(request, name)
    if not text.isdecimal() or len(text) > 19:
        raise web.HTTPBadRequest(text=f"{name} must be a number, not {text[:100]!r}.")
    return int(text)


def _parse_place(request: web.Request) -> tuple[TopicPartition, int]:
    partition = TopicPartition(_require(request, "topic"), _parse_number(request, "partition"))
    return partition, _parse_number(request, "offset")


def _parse_query(request: web.Request) -> tuple[records.BrowseQuery, str]:
    """Return what a browse form asks for, and what is wrong with it."""
    fields = request.query
    start, start_text = fields.get("from", records.END), fields.get("at", "").strip()
    key, value, header = (fields.get(name, "") for name in ("key", "value", "header"))
    partition = fields.get("partition", "")
    query = records.BrowseQuery(key=key, value=value, header=header)
    if partition and not (partition.isdecimal() and len(partition) < 10):
        return query, f"The partition must be a number, not {partition!r}."
    if start not in (records.END, records.OFFSET, records.TIME):
        return query, f"from= must be end, offset or time, not {start!r}."
    number = 0
    if start == records.OFFSET:
        if not start_text.isdecimal() or len(start_text) > 18:
            return query, f"The offset must be a number, not {start_text!r}."
        number = int(start_text)
    if start == records.TIME:
        try:
            number = max(0, parse_timestamp(start_text))
        except (ValueError, OverflowError) as error:
            return query, str(error)
    partition_index = int(partition) if partition else None
    return records.BrowseQuery(start, number, partition_index, key, value, header), ""


def _paginate(items: list[Any], request: web.Request) -> tuple[list[Any], dict[str, int]]:
    """Return one page of rows, and the numbers for the links to the others."""
    pages = max(1, -(-len(items) // ROWS_MAX))
    text = request.query.get("page", "1")
    page = min(max(1, int(text)), pages) if text.isdecimal() and len(text) < 9 else 1
    rows = items[(page - 1) * ROWS_MAX : page * ROWS_MAX]
    return rows, {"page": page, "pages": pages, "rows": len(items)}


def _compute_age_s(sample: ClusterSample, timestamp_ms: int | None) -> float | None:
    return None if timestamp_ms is None else max(0.0, (sample.at_ms - timestamp_ms) / 1000)


def _compute_partition_age_s(sample: ClusterSample, position: Any) -> float | None:
    if not position.lag or position.offset is None:
        return None
    return _compute_age_s(sample, sample.oldest_ms.get((position.partition, position.offset)))


def _find_lacking(topic: Topic) -> list[int]:
    """Return the partitions without a leader or with replicas that are not in sync."""
    return [p.index for p in topic.partitions if p.leader_id < 0 or len(p.isr) < len(p.replicas)]


def _list_disks(sample: ClusterSample) -> list[tuple[int, int, int]]:
    """Return (broker, used bytes, total bytes) of each log directory, the fullest first."""
    disks = [
        (node, folder.total_bytes - folder.usable_bytes, folder.total_bytes)
        for node, folders in sample.disks.items()
        for folder in folders
        if folder.total_bytes > 0 and folder.usable_bytes >= 0
    ]
    return sorted(disks, key=lambda disk: -disk[1] / disk[2])


def _find_value(entries: list[ConfigEntry] | str, name: str) -> str:
    if isinstance(entries, str):
        return ""
    return next((entry.value or "" for entry in entries if entry.name == name), "")


def _draw_charts(topic: str, hour: Hour) -> list[Chart]:
    depth = [ChartLine("depth", "Depth", hour.depth)]
    if not all(map(isnan, hour.in_flight)):
        depth.append(ChartLine("in-flight", "In flight", hour.in_flight))
    rates = [ChartLine("in", "In", hour.rate_in), ChartLine("out", "Out", hour.rate_out)]
    return [
        draw_chart(f"Depth of {topic}, records", hour.times, depth, now_s=hour.end_s),
        draw_chart(
            f"Throughput of {topic}, records per second",
            hour.times,
            rates,
            now_s=hour.end_s,
            form=figures.format_rate,
        ),
    ]
