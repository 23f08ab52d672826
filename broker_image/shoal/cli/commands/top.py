"""`shoal top`: a live view of throughput, lag, records in flight, redeliveries and dead letters.

Rates are differences of two samples: of log ends for topics, of positions for groups. Records in
flight, redeliveries, waiting records (in retry back-off or before their dead letter is written)
and dead letters come from the brokers' metrics; see `shoal.monitoring.scrape`. Without metrics
these columns show dashes. The state of a group shows why its delivery stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.cli import output
from shoal.cli.commands.groups import Metrics
from shoal.cli.group_names import AllGroups, select_groups
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import command, make_app, warn
from shoal.client.admin.admin import Admin
from shoal.client.admin.groups import SHARE, GroupDescription
from shoal.client.client import Client
from shoal.client.errors import ClientError, is_transient
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import lag
from shoal.monitoring import scrape

app = make_app("Watch throughput, lag, records in flight and redeliveries.")

_TOPIC_FIELDS = ("topic", "partitions", "records", "in_per_s")
_GROUP_FIELDS = (
    "group",
    "type",
    "state",
    "members",
    "lag",
    "lag_per_s",
    "done_per_s",
    "in_flight",
    "redelivered_per_s",
    "waiting",
    "dead_per_s",
)
#: Lines of the screen outside the tables' rows: title, two headers, gaps, number of hidden rows.
FIXED_LINES = 8


@dataclass(frozen=True, slots=True)
class GroupSample:
    type: str
    state: str
    members: int
    lag: int | None
    completed: int | None
    in_flight: int | None
    redelivered: int | None
    waiting: int | None
    dead_lettered: int | None


@dataclass(frozen=True, slots=True)
class TopSample:
    """The cluster at one moment. `log_ends` are by partition; a group's `completed` is log end
    minus lag.
    """

    at_s: float
    cluster_id: str
    brokers: int
    partitions: Mapping[str, int]
    log_ends: Mapping[TopicPartition, int]
    groups: Mapping[str, GroupSample]
    metrics: bool = field(default=False)
    refusals: list[str] = field(default_factory=list)

    def count_produced(self) -> dict[str, int]:
        """Return the records ever produced to each topic."""
        totals = dict.fromkeys(self.partitions, 0)
        for partition, end in self.log_ends.items():
            totals[partition.topic] += end
        return totals


@command(app)
async def top(
    client: Client,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, help="Seconds between two samples.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view and exit.")] = False,
    metrics: Metrics = None,
    all_: AllGroups = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Watch topics and groups. Press Ctrl-C to end. JSON and YAML are printed once."""
    # Show an unreachable broker soon instead of waiting for it.
    patience_ms = int(max(interval, 1.0) * 1000)
    client.cluster.settings = replace(client.cluster.settings, retry_timeout_ms=patience_ms)
    before = await sample(client.admin, metrics, show_all=all_)
    await asyncio.sleep(min(interval, 1.0))
    now = await sample(client.admin, metrics, show_all=all_)
    if format is not Format.TABLE:
        for refusal in now.refusals:
            warn(refusal)
        output.print_document(format, build_document(before, now))
        return
    if once:
        output.make_console().print(build_view(before, now, None))
        return
    screen = output.make_console()
    with Live(console=screen, screen=screen.is_terminal, auto_refresh=False) as live:
        note = ""
        while True:
            live.update(build_view(before, now, screen.height, note), refresh=True)
            await asyncio.sleep(interval)
            try:
                sampled = await sample(client.admin, metrics, show_all=all_)
                before, now, note = now, sampled, ""
            except ClientError as error:
                if not is_transient(error):
                    raise
                note = f"{error}. Retrying"


async def sample(
    admin: Admin, metrics: list[str] | None = None, *, show_all: bool = False
) -> TopSample:
    """Read everything from the cluster in a few batched calls."""
    topics = await admin.topics.list()
    partitions = [TopicPartition(t.name, p.index) for t in topics.values() for p in t.partitions]
    at_s = time.monotonic()
    ends = {
        p: end for p, end in (await lag.find_log_ends(admin, partitions)).items() if end is not None
    }
    listed = select_groups(await admin.groups.list(), show_all=show_all)
    described = await admin.groups.describe(listed) if listed else {}
    positions = await lag.find_positions(admin, listed.values()) if listed else {}
    refusals: list[str] = []
    numbers = await scrape.read_group_numbers(admin, metrics, refusals.append)
    described_groups = {
        g: group for g, group in described.items() if isinstance(group, GroupDescription)
    }
    paused = await scrape.find_paused_groups(admin, described_groups.values())
    groups = {
        g: _make_group_sample(group, positions.get(g, []), numbers, paused=g in paused)
        for g, group in described_groups.items()
    }
    cluster = admin.cluster
    counts = {name: len(t.partitions) for name, t in topics.items()}
    return TopSample(
        at_s,
        cluster.cluster_id or "",
        len(cluster.brokers),
        counts,
        ends,
        groups,
        numbers is not None,
        refusals,
    )


def _make_group_sample(
    group: GroupDescription,
    positions: list[lag.Position],
    numbers: Mapping[str, scrape.ShareNumbers] | None,
    *,
    paused: bool,
) -> GroupSample:
    measured = [p for p in positions if p.lag is not None and p.log_end_offset is not None]
    finished = sum((p.log_end_offset or 0) - (p.lag or 0) for p in measured) if measured else None
    share = None
    if numbers is not None and group.type == SHARE:
        share = numbers.get(group.group_id, scrape.ShareNumbers())
    stops = (share.stop_reasons if share else frozenset()) - {"window-full"}
    state = "Paused" if paused else _describe_stop(stops) if stops else group.state
    return GroupSample(
        group.type,
        state,
        len(group.members),
        lag.sum_lags(positions),
        finished,
        share.in_flight if share else None,
        share.redelivered if share else None,
        share.waiting if share else None,
        share.dead_lettered if share else None,
    )


def _describe_stop(reasons: frozenset[str]) -> str:
    """Return one or two words for why delivery stops, the strongest reason first."""
    for why, state in (
        ("paused", "Paused"),
        ("flood", "Dead-letter limit"),
        ("held-keys", "Keys held"),
    ):
        if why in reasons:
            return state
    return "Look-ahead" if reasons == {"look-ahead"} else "DLQ fails"


def build_document(before: TopSample, now: TopSample) -> dict[str, Any]:
    """Return all rows, with rates per second; None for what is not known."""
    seconds = max(now.at_s - before.at_s, 1e-3)
    return {
        "cluster_id": now.cluster_id,
        "brokers": now.brokers,
        "interval_s": round(seconds, 3),
        "topics": [
            dict(zip(_TOPIC_FIELDS, row, strict=True))
            for row in _make_topic_rows(before, now, seconds)
        ],
        "groups": [
            dict(zip(_GROUP_FIELDS, row, strict=True))
            for row in _make_group_rows(before, now, seconds)
        ],
    }


def build_view(before: TopSample, now: TopSample, height: int | None, note: str = "") -> Stack:
    """Return two tables that fit into `height` lines (None: all rows), the busiest rows first."""
    seconds = max(now.at_s - before.at_s, 1e-3)
    topics = _make_topic_rows(before, now, seconds)
    groups = _make_group_rows(before, now, seconds)
    room = None if height is None else max(4, height - FIXED_LINES)
    group_room = None if room is None else max(room // 2, room - len(topics))
    shown_groups = groups[:group_room]
    shown_topics = topics[: None if room is None else max(2, room - len(shown_groups))]
    total = sum(row[3] for row in topics)
    noun = "broker" if now.brokers == 1 else "brokers"
    title = Text.assemble(
        ("shoal top", "bold"),
        f"   {now.cluster_id}   {now.brokers} {noun}   "
        f"{total:,.0f} records/s in   {time.strftime('%H:%M:%S')}",
    )
    parts: list[Any] = [title, Text(note, style="yellow")]
    parts.append(_make_table(_TOPIC_FIELDS, shown_topics))
    left_out = len(topics) - len(shown_topics) + len(groups) - len(shown_groups)
    parts += [
        Text(""),
        _make_table(_GROUP_FIELDS, shown_groups),
    ]
    if not groups:
        parts.append(Text("There are no groups.", style="dim"))
    if left_out:
        parts.append(Text(f"{left_out} less busy rows are hidden.", style="dim"))
    if now.refusals:
        parts.append(Text(now.refusals[0], style="dim"))
    elif not now.metrics and any(g.type == SHARE for g in now.groups.values()):
        parts.append(
            Text(
                "No broker reports IN FLIGHT and REDELIVERED/S. Start brokers with --metrics.",
                style="dim",
            )
        )
    return Stack(*parts)


def _make_topic_rows(before: TopSample, now: TopSample, seconds: float) -> list[tuple[Any, ...]]:
    earlier, produced = before.count_produced(), now.count_produced()
    rows = [
        (name, now.partitions[name], count, max(0, count - earlier.get(name, count)) / seconds)
        for name, count in produced.items()
    ]
    return sorted(rows, key=lambda row: (-row[3], -row[2], row[0]))


def _make_group_rows(before: TopSample, now: TopSample, seconds: float) -> list[tuple[Any, ...]]:
    rows = []
    for name, group in now.groups.items():
        earlier = before.groups.get(name)

        def compute_rate(
            value: Callable[[GroupSample], int | None],
            earlier: GroupSample | None = earlier,
            group: GroupSample = group,
        ) -> float | None:
            first, last = value(earlier) if earlier else None, value(group)
            return None if first is None or last is None else (last - first) / seconds

        rows.append(
            (
                name,
                group.type,
                group.state,
                group.members,
                group.lag,
                compute_rate(lambda g: g.lag),
                compute_rate(lambda g: g.completed),
                group.in_flight,
                compute_rate(lambda g: g.redelivered),
                group.waiting,
                compute_rate(lambda g: g.dead_lettered),
            )
        )
    return sorted(rows, key=lambda row: (-(row[4] or 0), -(row[6] or 0), row[0]))


def _make_table(fields: Sequence[str], rows: list[tuple[Any, ...]]) -> Table:
    columns = [name.replace("_per_s", "/s").replace("_", " ").upper() for name in fields]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold reverse")
    for index, name in enumerate(columns):
        numbers = bool(rows) and not isinstance(rows[0][index], str)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_format_cell(columns[index], value) for index, value in enumerate(row)))
    return table


def _format_cell(column: str, value: Any) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, str):
        return Text(value)
    text = f"{value:,.0f}" if isinstance(value, float) else f"{value:,}"
    if column == "LAG/S" and value > 0:
        text = "+" + text
    warns = value > 0 and column in ("LAG/S", "REDELIVERED/S", "DEAD/S")
    return Text(text, style="yellow" if warns else "")
