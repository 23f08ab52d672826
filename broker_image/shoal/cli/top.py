"""`shoal top`: a live view of throughput, lag, records in flight, redeliveries and dead letters.

Rates are differences of two samples: of log ends for topics, of positions for groups. Records in
flight, redeliveries, waiting records (in retry back-off or before their dead letter is written)
and dead letters come from the brokers' metrics; see `shoal.client.scrape`. Without metrics these
columns show dashes. The state of a group shows why its delivery stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.cli import output
from shoal.cli.groups import Metrics
from shoal.cli.session import command, new_app
from shoal.client import lag, scrape
from shoal.client.admin import Admin
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.errors import ClientError, transient
from shoal.client.groups import SHARE, Group

app = new_app("Watch throughput, lag, records in flight and redeliveries.")

#: Lines of the screen outside the tables' rows: title, two headers, gaps, number of hidden rows.
FIXED_LINES = 8


@dataclass(frozen=True, slots=True)
class GroupSample:
    type: str
    state: str
    members: int
    lag: int | None
    done: int | None
    in_flight: int | None
    redelivered: int | None
    waiting: int | None
    dead_lettered: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment. `log_ends` are by partition; a group's `done` is log end minus
    lag.
    """

    at_s: float
    cluster_id: str
    brokers: int
    partitions: Mapping[str, int]
    log_ends: Mapping[TopicPartition, int]
    groups: Mapping[str, GroupSample]
    metrics: bool = field(default=False)
    refusals: list[str] = field(default_factory=list)

    def produced(self) -> dict[str, int]:
        """Return the records ever produced to each topic."""
        found = dict.fromkeys(self.partitions, 0)
        for where, end in self.log_ends.items():
            found[where.topic] += end
        return found


@command(app)
async def top(
    client: Client,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, help="Seconds between two samples.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view and exit.")] = False,
    metrics: Metrics = None,
) -> None:
    """Watch topics and groups. Press Ctrl-C to end."""
    # Show an unreachable broker soon instead of waiting for it.
    patience_ms = int(max(interval, 1.0) * 1000)
    client.cluster.settings = replace(client.cluster.settings, retry_timeout_ms=patience_ms)
    before = await sample(client.admin, metrics)
    await asyncio.sleep(min(interval, 1.0))
    now = await sample(client.admin, metrics)
    if once:
        output.console().print(view(before, now, None))
        return
    screen = output.console()
    with Live(console=screen, screen=screen.is_terminal, auto_refresh=False) as live:
        note = ""
        while True:
            live.update(view(before, now, screen.height, note), refresh=True)
            await asyncio.sleep(interval)
            try:
                before, now, note = now, await sample(client.admin, metrics), ""
            except ClientError as error:
                if not transient(error):
                    raise
                note = f"{error}. Retrying"


async def sample(admin: Admin, metrics: list[str] | None = None) -> Sample:
    """Read everything from the cluster in a few batched calls."""
    topics = await admin.topics.list()
    partitions = [TopicPartition(t.name, p.index) for t in topics.values() for p in t.partitions]
    at_s = time.monotonic()
    ends = {p: end for p, end in (await lag.log_ends(admin, partitions)).items() if end is not None}
    listed = await admin.groups.list()
    described = await admin.groups.describe(listed) if listed else {}
    positions = await lag.positions(admin, listed.values()) if listed else {}
    refusals: list[str] = []
    numbers = await scrape.share_numbers(admin, metrics, refusals.append)
    known = {g: one for g, one in described.items() if isinstance(one, Group)}
    paused = await scrape.paused(admin, known.values())
    groups = {
        g: _group(one, positions.get(g, []), numbers, paused=g in paused)
        for g, one in known.items()
    }
    cluster = admin.cluster
    counts = {name: len(t.partitions) for name, t in topics.items()}
    return Sample(
        at_s,
        cluster.cluster_id or "",
        len(cluster.brokers),
        counts,
        ends,
        groups,
        numbers is not None,
        refusals,
    )


def _group(
    group: Group,
    positions: list[lag.Position],
    numbers: Mapping[str, scrape.ShareNumbers] | None,
    *,
    paused: bool,
) -> GroupSample:
    known = [p for p in positions if p.lag is not None and p.log_end_offset is not None]
    done = sum((p.log_end_offset or 0) - (p.lag or 0) for p in known) if known else None
    share = None
    if numbers is not None and group.type == SHARE:
        share = numbers.get(group.group_id, scrape.ShareNumbers())
    stops = (share.stop_reasons if share else frozenset()) - {"window-full"}
    state = "Paused" if paused else _stopped_state(stops) if stops else group.state
    return GroupSample(
        group.type,
        state,
        len(group.members),
        lag.total(positions),
        done,
        share.in_flight if share else None,
        share.redelivered if share else None,
        share.waiting if share else None,
        share.dead_lettered if share else None,
    )


def _stopped_state(reasons: frozenset[str]) -> str:
    """Return one or two words for why delivery stops, the strongest reason first."""
    for why, state in (("paused", "Paused"), ("flood", "Flooded"), ("held-keys", "Keys held")):
        if why in reasons:
            return state
    return "Look-ahead" if reasons == {"look-ahead"} else "DLQ fails"


def view(before: Sample, now: Sample, height: int | None, note: str = "") -> Stack:
    """Return two tables that fit into `height` lines (None: all rows), the busiest rows first."""
    seconds = max(now.at_s - before.at_s, 1e-3)
    topics = _topic_rows(before, now, seconds)
    groups = _group_rows(before, now, seconds)
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
    parts.append(_table(["TOPIC", "PARTITIONS", "RECORDS", "IN/S"], shown_topics))
    left_out = len(topics) - len(shown_topics) + len(groups) - len(shown_groups)
    parts += [
        Text(""),
        _table(
            [
                "GROUP",
                "TYPE",
                "STATE",
                "MEMBERS",
                "LAG",
                "LAG/S",
                "DONE/S",
                "IN FLIGHT",
                "REDELIVERED/S",
                "WAITING",
                "DEAD/S",
            ],
            shown_groups,
        ),
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


def _topic_rows(before: Sample, now: Sample, seconds: float) -> list[tuple[Any, ...]]:
    earlier, produced = before.produced(), now.produced()
    rows = [
        (name, now.partitions[name], count, max(0, count - earlier.get(name, count)) / seconds)
        for name, count in produced.items()
    ]
    return sorted(rows, key=lambda row: (-row[3], -row[2], row[0]))


def _group_rows(before: Sample, now: Sample, seconds: float) -> list[tuple[Any, ...]]:
    rows = []
    for name, group in now.groups.items():
        earlier = before.groups.get(name)

        def rate(
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
                rate(lambda g: g.lag),
                rate(lambda g: g.done),
                group.in_flight,
                rate(lambda g: g.redelivered),
                group.waiting,
                rate(lambda g: g.dead_lettered),
            )
        )
    return sorted(rows, key=lambda row: (-(row[4] or 0), -(row[6] or 0), row[0]))


def _table(columns: list[str], rows: list[tuple[Any, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold reverse")
    for at, name in enumerate(columns):
        numbers = bool(rows) and not isinstance(rows[0][at], str)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(columns[at], value) for at, value in enumerate(row)))
    return table


def _cell(column: str, value: Any) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, str):
        return Text(value)
    text = f"{value:,.0f}" if isinstance(value, float) else f"{value:,}"
    if column == "LAG/S" and value > 0:
        text = "+" + text
    warns = value > 0 and column in ("LAG/S", "REDELIVERED/S", "DEAD/S")
    return Text(text, style="yellow" if warns else "")
