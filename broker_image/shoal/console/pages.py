"""The pages: each handler turns a request into a template and its variables.

Live pages have a second template for the part that changes, which `/live/…` streams.
"""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from shoal.client.cluster import Topic, TopicPartition
from shoal.client.configs import Resource, ResourceType
from shoal.client.dead_letter_topics import TOPIC, bounds, dead_letter_topics
from shoal.client.dead_letters import REASONS, DeadLetterFilter
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.gaps import gaps
from shoal.client.held_keys import HeldKey, held_keys
from shoal.client.key_range_owners import WHOLE, owners_of_groups
from shoal.client.timestamps import timestamp
from shoal.console import figures, holdings, letters, payloads, queues, records
from shoal.console.charts import Line, chart
from shoal.console.queues import Level, Queue
from shoal.console.sample import Metrics, Sample
from shoal.console.security import LOGIN, USER
from shoal.record.records import header_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.client import Client
    from shoal.client.configs import ConfigEntry
    from shoal.client.groups import Group
    from shoal.client.lag import Position
    from shoal.console.actors import Actors
    from shoal.console.charts import Chart
    from shoal.console.history import Hour
    from shoal.console.holdings import Holdings
    from shoal.console.kubernetes import Kubernetes
    from shoal.console.openid import OpenIdLogin
    from shoal.console.prometheus import Prometheus
    from shoal.console.sampler import Sampler
    from shoal.console.views import View

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
        view: View,
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

    def base(self, request: web.Request) -> dict[str, object]:
        """Return the variables that every page needs."""
        sampler, sample = self._sampler, self._sampler.sample
        return {
            "request": request,
            "sample": sample,
            "problem": sampler.error,
            "problem_since": figures.clock(sampler.error_since_ms) if sampler.error else "",
            "interval_s": sampler.interval_s,
            "time": sampler.time,
            "kafka": sample is not None and sample.metrics is Metrics.UNSUPPORTED,
            "silent": sample is not None and sample.metrics is Metrics.SILENT,
            "is_live": False,
            "user": request.get(USER, ""),
            "can_log_out": LOGIN in request,
            "on_kubernetes": self._kubernetes is not None,
            "why_off": self._actors.why_off,
            "can_act": not self._actors.why_off,
        }

    async def logged_out(self, login: OpenIdLogin, request: web.Request) -> Page:
        """What remains to do after a log-out. It shows nothing of the cluster."""
        nothing = {"sample": None, "problem": None, "can_act": False, "why_off": "", "time": ""}
        more = {"log_out_url": login.provider_log_out}
        return Page("logged_out", {**self.base(request), **nothing, **more})

    # The overview

    async def overview(self, request: web.Request) -> Page:
        """All queues and the health of the cluster."""
        context = self.base(request)
        sample = self._sampler.sample
        if sample is None:
            return Page("overview", context)
        words = request.query.get("q", "").strip()
        every = [q for q in self._sampler.queues if words in q.group or words in q.topic]
        rows, paging = _paged(every, request)
        return Page(
            "overview",
            context
            | {
                "queues": rows,
                "paging": paging,
                "words": words,
                "count": len(self._sampler.queues),
                "troubled": sum(q.state.level >= Level.WARNING for q in self._sampler.queues),
                "disks": _disks(sample),
                "ages": {(q.group, q.topic): _age_s(sample, q.oldest_ms) for q in rows},
            },
        )

    # Groups

    async def group(self, request: web.Request) -> Page:
        """One group. A share group has bars, history and causes."""
        context = self.base(request)
        sample, name = self._sampler.sample, _required(request, "id")
        context["name"] = name
        if not (await self._may_exist(name) if sample is None else name in sample.listed):
            raise web.HTTPNotFound(text=f"There is no group {name!r}.")
        if sample is None:
            return Page("group", context)
        positions = sample.positions.get(name, [])
        if name in sample.groups:
            context |= await self._share_group(sample, name)
        else:
            found = (await self._client.admin.groups.describe([name]))[name]
            if isinstance(found, KafkaError):
                raise found
            context["group"] = found
            context |= await self._key_ranges(found, positions)
        entries = await self._configs(ResourceType.GROUP, name)
        partitions = sample.numbers.partitions if sample.numbers else {}
        return Page(
            "group",
            context
            | {
                "is_share": name in sample.groups,
                "positions": [
                    (p, partitions.get((name, p.where)), _partition_age_s(sample, p))
                    for p in positions
                ],
                "configs": entries,
                "letter_topic": _value(entries, TOPIC),
            },
        )

    async def _may_exist(self, group: str) -> bool:
        """Ask the cluster for a group before the first sample. Return True without an answer."""
        try:
            return group in await self._client.admin.groups.list()
        except ClientError:
            return True

    async def _key_ranges(self, group: Group, positions: list[Position]) -> dict[str, object]:
        """Return the key ranges of a group, and the gaps of partitions without any."""
        name = group.group_id
        found = await owners_of_groups(self._client.admin, [group], {name: positions})
        shown = [one for one in found.get(name, ()) if one.ranges != WHOLE or one.finished.count]
        return {
            "key_ranges": [(one.row(), next(iter(gaps([one])), None)) for one in shown[:ROWS_MAX]],
            "key_ranges_count": len(shown),
        }

    async def _share_group(self, sample: Sample, name: str) -> dict[str, object]:
        found = [queue for queue in self._sampler.queues if queue.group == name]
        found.sort(key=lambda queue: queue.topic)
        positions = sample.positions.get(name, [])
        held = sum(last - first + 1 for p in positions for first, last in p.key_holder_offsets)
        in_hands = await self._held_by_members(sample, name)
        hours, why = await self._hours(sample, found)
        return {
            "group": sample.groups[name],
            "queues": found,
            "holdings": in_hands,
            "is_paused": name in sample.paused,
            "causes": queues.causes(sample, name, found, in_hands),
            "skipped": queues.describe_skipped(sample, name),
            "charts": {topic: _charts(topic, hour) for topic, hour in hours.items()},
            "from_prometheus": self._prometheus is not None and bool(found) and not why,
            "why_from_memory": why,
            "ages": {(q.group, q.topic): _age_s(sample, q.oldest_ms) for q in found},
            "held_count": held,
            "held": await self._held(positions) if held else [],
        }

    async def _held(self, positions: list[Position]) -> list[HeldKey]:
        """Return the first held keys, with what may be shown of them."""
        found = await held_keys(self._client, positions, keys_max=HELD_MAX)
        return [
            replace(one, key=await self._view.key(one.where.topic, one.key))
            for one in found[:HELD_MAX]
        ]

    async def _held_by_members(self, sample: Sample, name: str) -> Holdings | None:
        if sample.metrics is Metrics.UNSUPPORTED:
            return None
        if self._holdings_at_ms != sample.at_ms:
            self._holdings_at_ms = sample.at_ms
            self._holdings = {}
        if name not in self._holdings:
            places = [p.where for p in sample.positions.get(name, ()) if p.lag != 0]
            self._holdings[name] = await holdings.read(self._client, name, places)
        return self._holdings[name]

    async def _hours(self, sample: Sample, found: list[Queue]) -> tuple[dict[str, Hour], str]:
        """Return the history of a group's queues by topic: what Prometheus has, and of the others
        what the console has kept, with a sentence that says why."""
        history = self._sampler.history
        kept = {q.topic: history.of(q.group, q.topic).hour(sample.at_s) for q in found}
        if self._prometheus is None or not found:
            return kept, ""
        answer = await self._prometheus.group(found[0].group, list(kept))
        return {**kept, **answer.hours}, answer.why

    async def _configs(self, kind: ResourceType, name: str) -> list[ConfigEntry] | str:
        """Return the configs of a resource in order of their names, or why not."""
        resource = Resource(kind, name)
        try:
            found = (await self._client.admin.configs.describe([resource], synonyms=True))[resource]
        except ClientError as error:
            return str(error)
        if isinstance(found, KafkaError):
            return str(found)
        # Those that were set come first.
        return sorted(found.values(), key=lambda entry: (entry.is_default, entry.name))

    # Topics

    async def topics(self, request: web.Request) -> Page:
        """All topics."""
        context = self.base(request)
        sample = self._sampler.sample
        if sample is None:
            return Page("topics", context)
        words = request.query.get("q", "").strip()
        internal = request.query.get("internal") == "1"
        every = [
            topic
            for name, topic in sorted(sample.topics.items())
            if words in name and (internal or not topic.internal)
        ]
        rows, paging = _paged(every, request)
        groups: dict[str, int] = {}
        for positions in sample.positions.values():
            for name in {p.where.topic for p in positions}:
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
                "lacking": {t.name: _lacking(t) for t in rows},
            },
        )

    async def topic(self, request: web.Request) -> Page:
        """One topic: partitions, configs, groups, and its records."""
        context = self.base(request)
        name = _required(request, "name")
        topic = expect(await self._client.admin.topics.describe([name]))[name]
        query, mistake = _query(request)
        browsed: records.Browsed | None = None
        failure = ""
        if not mistake:
            try:
                browsed = await records.browse(self._client, self._view, name, query)
            except ClientError as error:
                failure = str(error)
        limits: dict[TopicPartition, tuple[int, int]] = {}
        try:
            limits = await bounds(self._client.admin, name)
        except ClientError as error:
            failure = failure or str(error)
        sample = self._sampler.sample
        on_it = [
            (group, sum(p.lag or 0 for p in mine))
            for group, positions in (sample.positions if sample else {}).items()
            if (mine := [p for p in positions if p.where.topic == name])
        ]
        return Page(
            "topic",
            context
            | {
                "topic": topic,
                "lacking": _lacking(topic),
                "limits": limits,
                "sizes": await self._sizes(topic),
                "groups": on_it,
                "configs": await self._configs(ResourceType.TOPIC, name),
                "query": query,
                "given": dict(request.query),
                "mistake": mistake,
                "failure": failure,
                "browsed": browsed,
                "rule": self._view.masks.of([name]),
            },
        )

    async def _sizes(self, topic: Topic) -> dict[int, int]:
        """Return the bytes of each partition's largest replica; empty if they may not be seen."""
        nodes = sorted({node for p in topic.partitions for node in p.isr})
        places = [TopicPartition(topic.name, p.index) for p in topic.partitions]
        found: dict[int, int] = {}
        try:
            every = await self._client.admin.log_dirs(nodes, only=places)
        except ClientError:
            return {}
        for folder in (one for some in every.values() for one in some):
            for where, size in folder.partitions.items():
                if where.topic == topic.name:
                    found[where.partition] = max(size, found.get(where.partition, 0))
        return found

    async def record(self, request: web.Request) -> Page:
        """One record, whole."""
        context = self.base(request)
        where, offset = _place(request)
        record = await records.read(self._client, self._view, where, offset)
        if record is None:
            raise web.HTTPNotFound(text=f"{where} has no record at offset {offset}.")
        wanted = request.query.get("as", "auto")
        sample = self._sampler.sample
        standing = [
            (group, p)
            for group, positions in (sample.positions if sample else {}).items()
            for p in positions
            if p.where == where
        ]
        shares = set(sample.groups) if sample else set()
        in_flight = {
            group: await holdings.standing(self._client, group, where, offset)
            for group, p in standing[:STANDING_MAX]
            if group in shares and p.offset is not None and p.offset <= offset
        }
        return Page(
            "record",
            context
            | {
                "where": where,
                "record": record,
                "key": payloads.show(record.key, wanted),
                "value": payloads.show(record.value, wanted),
                "headers": [(header_text(n), payloads.show(v)) for n, v in record.headers],
                "wanted": wanted,
                "formats": payloads.FORMATS,
                "standing": standing,
                "in_flight": in_flight,
                "shares": shares,
                "letter_topics": sample.letter_topics if sample else {},
            },
        )

    async def payload(self, request: web.Request) -> web.Response:
        """One record's value as a download, with its masked fields masked."""
        where, offset = _place(request)
        record = await records.read(self._client, self._view, where, offset)
        if record is None or record.value is None:
            raise web.HTTPNotFound(text=f"{where} has no value at offset {offset}.")
        if isinstance(record.value, payloads.Masked) and record.value.is_whole:
            raise web.HTTPForbidden(text=f"The value cannot be downloaded. {record.value.why}")
        return web.Response(
            body=payloads.raw(record.value),
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="record-{offset}.bin"'},
        )

    # Kubernetes

    async def consumers(self, request: web.Request) -> Page:
        """ShareConsumers, and the conditions and events of all kinds."""
        context = self.base(request)
        kubernetes = self._kubernetes
        if kubernetes is None or kubernetes.seen is None:
            return Page("consumers", {**context, "seen": None})
        seen = kubernetes.seen
        reported = [one for one in seen.consumers if one.wanted is not None]
        return Page(
            "consumers",
            context
            | {
                "seen": seen,
                "charts": [kubernetes.chart(one) for one in reported[:CHARTS_MAX]],
                "namespaces": kubernetes.settings.namespaces,
                "ROWS_MAX": ROWS_MAX,
            },
        )

    # Dead letters

    async def letters(self, request: web.Request) -> Page:
        """The topics of dead letters, or the letters of one."""
        context = self.base(request)
        name = request.query.get("topic", "")
        if not name:
            found = await dead_letter_topics(self._client.admin)
            rows = []
            for topic, groups in found.items():
                limits = await bounds(self._client.admin, topic)
                rows.append((topic, sum(end - start for start, end in limits.values()), groups))
            return Page("letter_topics", context | {"topics": rows})
        fields = ("reason", "group", "source", "same")
        chosen = {field: request.query.get(field, "") for field in fields}
        wanted = DeadLetterFilter(
            keys=[await self._same_key(name, chosen["same"])] if chosen["same"] else (),
            reasons=[chosen["reason"]] if chosen["reason"] else (),
            groups=[chosen["group"]] if chosen["group"] else (),
            source_topics=[chosen["source"]] if chosen["source"] else (),
        )
        return Page(
            "letters",
            context
            | {
                "name": name,
                "chosen": chosen,
                "letters": await letters.letters(self._client, self._view, name, wanted),
                "meanings": REASONS,
            },
        )

    async def _same_key(self, topic: str, place: str) -> bytes | None:
        try:
            return await letters.same_key(self._client, self._view, topic, place)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None

    async def letter(self, request: web.Request) -> Page:
        """One dead letter."""
        context = self.base(request)
        where, offset = _place(request)
        found = await letters.read(self._client, where, offset)
        if found is None:
            raise web.HTTPNotFound(text=f"{where} has no dead letter at offset {offset}.")
        wanted = request.query.get("as", "auto")
        done = await letters.redriven(self._client, where.topic)
        record = await self._view.shown(where.topic, found.record)
        return Page(
            "letter",
            context
            | {
                "letter": found._replace(record=record),
                "where": where,
                "key": payloads.show(record.key, wanted),
                "value": payloads.show(record.value, wanted),
                "headers": [(header_text(n), payloads.show(v)) for n, v in record.headers],
                "wanted": wanted,
                "formats": payloads.FORMATS,
                "is_redriven": where.partition in done and offset in done[where.partition],
            },
        )


def _required(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        raise web.HTTPBadRequest(text=f"The address lacks {name}=. Open the page from a list.")
    return value


def _number(request: web.Request, name: str) -> int:
    text = _required(request, name)
    if not text.isdecimal() or len(text) > 19:
        raise web.HTTPBadRequest(text=f"{name} must be a number, not {text[:100]!r}.")
    return int(text)


def _place(request: web.Request) -> tuple[TopicPartition, int]:
    where = TopicPartition(_required(request, "topic"), _number(request, "partition"))
    return where, _number(request, "offset")


def _query(request: web.Request) -> tuple[records.Query, str]:
    """Return what a browse form asks for, and what is wrong with it."""
    given = request.query
    start, at = given.get("from", records.END), given.get("at", "").strip()
    key, value, header = (given.get(name, "") for name in ("key", "value", "header"))
    partition = given.get("partition", "")
    query = records.Query(key=key, value=value, header=header)
    if partition and not (partition.isdecimal() and len(partition) < 10):
        return query, f"The partition must be a number, not {partition!r}."
    if start not in (records.END, records.OFFSET, records.TIME):
        return query, f"from= must be end, offset or time, not {start!r}."
    number = 0
    if start == records.OFFSET:
        if not at.isdecimal() or len(at) > 18:
            return query, f"The offset must be a number, not {at!r}."
        number = int(at)
    if start == records.TIME:
        try:
            number = max(0, timestamp(at))
        except (ValueError, OverflowError) as error:
            return query, str(error)
    where = int(partition) if partition else None
    return records.Query(start, number, where, key, value, header), ""


def _paged(every: list[Any], request: web.Request) -> tuple[list[Any], dict[str, int]]:
    """Return one page of rows, and the numbers for the links to the others."""
    pages = max(1, -(-len(every) // ROWS_MAX))
    text = request.query.get("page", "1")
    page = min(max(1, int(text)), pages) if text.isdecimal() and len(text) < 9 else 1
    rows = every[(page - 1) * ROWS_MAX : page * ROWS_MAX]
    return rows, {"page": page, "pages": pages, "rows": len(every)}


def _age_s(sample: Sample, timestamp_ms: int | None) -> float | None:
    return None if timestamp_ms is None else max(0.0, (sample.at_ms - timestamp_ms) / 1000)


def _partition_age_s(sample: Sample, position: Any) -> float | None:
    if not position.lag or position.offset is None:
        return None
    return _age_s(sample, sample.oldest_ms.get((position.where, position.offset)))


def _lacking(topic: Topic) -> list[int]:
    """Return the partitions without a leader or with replicas that are not in sync."""
    return [p.index for p in topic.partitions if p.leader_id < 0 or len(p.isr) < len(p.replicas)]


def _disks(sample: Sample) -> list[tuple[int, int, int]]:
    """Return (broker, used bytes, total bytes) of each log directory, the fullest first."""
    found = [
        (node, folder.total_bytes - folder.usable_bytes, folder.total_bytes)
        for node, folders in sample.disks.items()
        for folder in folders
        if folder.total_bytes > 0 and folder.usable_bytes >= 0
    ]
    return sorted(found, key=lambda one: -one[1] / one[2])


def _value(entries: list[ConfigEntry] | str, name: str) -> str:
    if isinstance(entries, str):
        return ""
    return next((entry.value or "" for entry in entries if entry.name == name), "")


def _charts(topic: str, hour: Hour) -> list[Chart]:
    depth = [Line("depth", "Depth", hour.depth)]
    if not all(map(isnan, hour.in_flight)):
        depth.append(Line("in-flight", "In flight", hour.in_flight))
    rates = [Line("in", "In", hour.rate_in), Line("out", "Out", hour.rate_out)]
    return [
        chart(f"Depth of {topic}, records", hour.times, depth, now_s=hour.end_s),
        chart(
            f"Throughput of {topic}, records per second",
            hour.times,
            rates,
            now_s=hour.end_s,
            form=figures.rate,
        ),
    ]
