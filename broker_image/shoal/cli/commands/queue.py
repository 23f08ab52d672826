"""`shoal queue`: a topic, the share group that works on it, and its dead letters, as one thing."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NamedTuple

import typer

from shoal.cli import output, prompts, timestamps
from shoal.cli.commands.groups import Metrics, read_numbers
from shoal.cli.group_names import check_group
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.admin.admin import Admin
from shoal.client.admin.configs import AlterOperation, ConfigChange
from shoal.client.admin.groups import GroupDescription
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.queues import lag, queue_creation, queue_settings
from shoal.client.queues.queue_creation import NewQueue, QueuePlan
from shoal.client.queues.queue_settings import QueueSettings
from shoal.dead_letters import dead_letter_topics
from shoal.monitoring import delays, scrape
from shoal.monitoring.remedies import format_remedy
from shoal.protocol.errors import ErrorCode

app = make_app("Create, list, describe and delete queues: a topic, its group and dead letters.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name, which is its topic.")]
GroupName = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="NAME", help="The share group. Default: the queue's name."
    ),
]
FairBy = Annotated[
    str | None,
    typer.Option(
        metavar="key|header:NAME",
        help="Share the workers among tenants, whom the key or this header of a job names.",
    ),
]


class Backlog(NamedTuple):
    """What a group has to do in one topic."""

    topic: str
    partitions: list[lag.Position]
    group: GroupDescription
    dead_letter_topic: str | None
    #: Records in the topic of dead letters, of all groups that write there; None without a topic.
    dead_letters: int | None
    numbers: scrape.ShareNumbers | None

    def make_row(self) -> dict[str, Any]:
        numbers = self.numbers
        return {
            "queue": self.topic,
            "group": self.group.group_id,
            "state": self.group.state,
            "members": len(self.group.members),
            "backlog": lag.sum_lags(self.partitions),
            "in_flight": numbers.in_flight if numbers else None,
            "waiting": numbers.waiting if numbers else None,
            "dead_letters": self.dead_letters,
            "dead_letter_topic": self.dead_letter_topic,
        }


@command(app, "create")
async def create(
    client: Client,
    queue: Name,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries", "-r", min=0, metavar="N", help="Deliveries of a record after the first."
        ),
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            metavar="1s..5m",
            help="Waits before these deliveries: the first and the longest, doubling.",
        ),
    ] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Keep what fails for good, in dlq.QUEUE.")
    ] = False,
    order: Annotated[
        str | None, typer.Option(metavar="key", help="Deliver the records of a key in order.")
    ] = None,
    delays: Annotated[
        str | None, typer.Option(metavar="7d", help="The longest delay that a job may ask for.")
    ] = None,
    priorities: Annotated[
        bool, typer.Option("--priorities", help="Deliver jobs by their header priority, 9 first.")
    ] = False,
    fair_by: FairBy = None,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", show_default=False, help="Partitions. Default: the broker's."
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(show_default=False, help="Replicas of each partition. Default: the broker's."),
    ] = -1,
    group: GroupName = None,
) -> None:
    """Create a queue in one step: its topic, the topic of its dead letters, and a share group with
    these settings that starts at the earliest record. What exists already is completed, and never
    altered.
    """
    check_group(group or queue)
    if order not in (None, "key"):
        raise CommandError(f"--order must be key, not {order!r}.", USAGE)
    if partitions == 0 or partitions < -1:
        raise CommandError(f"--partitions must be at least 1, not {partitions}.", USAGE)
    letters = None
    if dead_letters:
        letters = await queue_creation.find_dead_letter_topic(client.admin, queue)
    waits, delay_ms = _parse_backoff(backoff), _parse_delay(delays)
    settings = QueueSettings(retries, waits, letters, order, delay_ms, priorities, fair_by)
    new = NewQueue(queue, group or queue, settings, partitions, replication_factor)
    plan = await queue_creation.make_plan(client.admin, new)
    if plan.differences:
        raise CommandError(
            f"queue {queue} exists with other settings, and nothing was changed.\n"
            + "\n".join(plan.differences)
        )
    await queue_creation.check(client.admin, plan)
    for sentence in plan.kept:
        say(sentence)
    await _apply(client.admin, plan)


async def _apply(admin: Admin, plan: QueuePlan) -> None:
    made: list[str] = []
    try:
        async for sentence in queue_creation.apply(admin, plan):
            say(sentence)
            made.append(sentence)
    except KafkaError as error:
        raise CommandError(
            f"queue {plan.queue.topic} is incomplete: {format_remedy(error)} "
            + ("What is printed above is made. " if made else "Nothing was made. ")
            + "Then run the command again: it makes the rest."
        ) from None


def _parse_backoff(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    from shoal.worker.backoff import Backoff

    try:
        parsed = Backoff.from_text(text)
    except ValueError as error:
        raise CommandError(f"--backoff: {error}", USAGE) from None
    return round(parsed.first_s * 1000), round(parsed.longest_s * 1000)


def _parse_delay(text: str | None) -> int | None:
    if text is None:
        return None
    parsed_ms = timestamps.parse_duration_ms(text)
    if parsed_ms is None:
        raise CommandError(f"--delays {text} is not a duration. Write 5s, 2m, 1h or 7d.", USAGE)
    return parsed_ms


@command(app, "list")
async def list_queues(
    client: Client, metrics: Metrics = None, format: FormatOption = Format.TABLE
) -> None:
    """List the topics of all share groups, with what there is to do in each."""
    groups = await client.admin.groups.list(types=["share"])
    backlogs = await _read_backlogs(client, [*groups], metrics)
    output.print_rows(
        format,
        [backlog.make_row() for backlog in backlogs],
        ["queue", "group", "state", "members", "backlog", "in_flight", "dead_letters"],
        empty="There are no queues. Create one with `shoal queue create NAME --dead-letters`.",
        expendable=["state", "members"],
    )


async def _read_backlogs(
    client: Client, groups: list[str], metrics: list[str] | None
) -> list[Backlog]:
    """Return the backlogs of these share groups, by topic and group. Groups that end meanwhile are
    left out."""
    admin = client.admin
    results = await admin.groups.describe(groups) if groups else {}
    described = {g: group for g, group in results.items() if isinstance(group, GroupDescription)}
    positions = await lag.find_positions(admin, {g: d.type for g, d in described.items()})
    numbers = await read_numbers(admin, described, metrics)
    topics_by_group = {
        group: topic
        for topic, writers in (
            await dead_letter_topics.list_groups_by_topic(admin, sorted(described))
        ).items()
        for group in writers
    }
    counts = {topic: await _count_records(admin, topic) for topic in {*topics_by_group.values()}}
    backlogs = []
    for name, group in described.items():
        by_topic: dict[str, list[lag.Position]] = {}
        for position in positions.get(name, ()):
            by_topic.setdefault(position.partition.topic, []).append(position)
        letters = topics_by_group.get(name)
        backlogs += [
            Backlog(
                topic,
                topic_positions,
                group,
                letters,
                counts[letters] if letters else None,
                _sum_numbers(numbers, name, topic_positions),
            )
            for topic, topic_positions in by_topic.items()
        ]
    return sorted(backlogs, key=lambda backlog: (backlog.topic, backlog.group.group_id))


def _sum_numbers(
    numbers: scrape.ShareGroupMetrics | None, group: str, positions: list[lag.Position]
) -> scrape.ShareNumbers | None:
    """Return the numbers of a group in these partitions, or None if they are not reported."""
    if numbers is None or not delays.is_known(group, positions, numbers.partitions):
        return None
    total = scrape.ShareNumbers()
    for position in positions:
        total.add(numbers.partitions.get((group, position.partition), scrape.ShareNumbers()))
    return total


async def _count_records(admin: Admin, topic: str) -> int | None:
    """Return the number of records of a topic; None if it cannot be read."""
    try:
        bounds = await dead_letter_topics.find_bounds(admin, topic)
    except KafkaError:
        return None
    return sum(end - start for start, end in bounds.values())


@command(app, "describe")
async def describe(
    client: Client,
    queue: Name,
    group: GroupName = None,
    metrics: Metrics = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show a queue's backlog, records in flight, dead letters, members and settings."""
    backlog = await _find_backlog(client, queue, group, metrics)
    configs = await queue_settings.read_configs(
        client.admin, queue_settings.make_group(backlog.group.group_id)
    )
    settings = dict(sorted(queue_settings.list_own(configs).items()))
    members = [
        {"member": m.member_id, "client": m.client_id, "host": m.client_host.lstrip("/")}
        for m in sorted(backlog.group.members, key=lambda m: m.member_id)
    ]
    if format is not Format.TABLE:
        row = backlog.make_row() | {
            "partitions": len(backlog.partitions),
            "members": members,
            "settings": settings,
        }
        output.print_document(format, row)
        return
    _print_backlog(backlog)
    say("\nSettings of the group:" if settings else "\nThe group has only default settings.")
    output.print_rows(format, [{"config": c, "value": v} for c, v in settings.items()])
    say()
    output.print_rows(format, members, empty="The group has no members.", expendable=["host"])


def _print_backlog(backlog: Backlog) -> None:
    row = backlog.make_row()
    facts = [
        _format_partitions(len(backlog.partitions)),
        f"group {row['group']}",
        row["state"],
        f"backlog {output.format_cell(row['backlog'])}",
    ]
    if backlog.numbers is not None:
        facts += [f"{row['in_flight']} in flight", f"{row['waiting']} waiting"]
    topic, count = backlog.dead_letter_topic, backlog.dead_letters
    if topic:
        noun = "dead letter" if count == 1 else "dead letters"
        facts.append(f"{output.format_cell(count)} {noun} in {topic}")
    say(f"{backlog.topic}   {', '.join(facts)}")
    if not topic:
        say("The group keeps no dead letters: what fails for good is dropped.")


async def _find_backlog(
    client: Client, queue: str, group: str | None, metrics: list[str] | None
) -> Backlog:
    """Return the backlog of one queue. Raises `CommandError` with the groups there are."""
    await client.cluster.get_topic(queue)
    listed = await client.admin.groups.list(types=["share"])
    backlogs = [b for b in await _read_backlogs(client, [*listed], metrics) if b.topic == queue]
    chosen = [b for b in backlogs if b.group.group_id == (group or queue)]
    if not chosen and group is None and len(backlogs) == 1:
        chosen = backlogs
    if chosen:
        return chosen[0]
    names = ", ".join(b.group.group_id for b in backlogs)
    raise CommandError(
        f"share group {group or queue} has no position in topic {queue}. "
        + (
            f"Choose --group from: {names}."
            if backlogs
            else f"Create the queue with `shoal queue create {queue}`."
        )
    )


@command(app, "delete")
async def delete(
    client: Client,
    queue: Name,
    group: GroupName = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a queue: its group with the settings, its topic, and the topic of its dead letters,
    with all records. A topic that other groups use stays.
    """
    backlog = await _find_backlog(client, queue, group, None)
    name = backlog.group.group_id
    if backlog.group.members:
        raise CommandError(
            f"group {name} has {len(backlog.group.members)} members. Stop the workers first."
        )
    topics, kept = await _choose_topics_to_delete(client.admin, backlog)
    parts = [f"group {name}"]
    for topic in topics:
        count = output.format_cell(await _count_records(client.admin, topic))
        parts.append(f"topic {topic} ({count} {'record' if count == '1' else 'records'})")
    sentence = f"{', '.join(parts)} would be deleted." + "".join(f" {text}" for text in kept)
    if not yes:
        if not sys.stdin.isatty():
            raise CommandError(f"--yes is missing: {sentence}", USAGE)
        prompts.confirm(f"Delete {', '.join(parts)}?")
    for text in kept:
        say(text)
    await _delete_group(client.admin, name)
    for topic, error in (await client.admin.topics.delete(topics) if topics else {}).items():
        if error is not None:
            raise error
        say(f"Deleted topic {topic}.")


async def _choose_topics_to_delete(admin: Admin, backlog: Backlog) -> tuple[list[str], list[str]]:
    """Return the topics that only this queue uses, and sentences about those that stay."""
    name = backlog.group.group_id
    listed = await admin.groups.list()
    others = [group for group in listed.values() if group.group_id != name]
    positions = await lag.find_positions(admin, others)
    readers = [
        group
        for group, group_positions in positions.items()
        if any(position.partition.topic == backlog.topic for position in group_positions)
    ]
    share = sorted(group.group_id for group in others if group.type == backlog.group.type)
    writers = await dead_letter_topics.list_groups_by_topic(admin, share)
    topics, kept = [], []
    for topic, users in (
        (backlog.topic, readers),
        (backlog.dead_letter_topic, writers.get(backlog.dead_letter_topic or "", [])),
    ):
        if topic is None:
            continue
        if users:
            kept.append(f"Topic {topic} stays, because of group {', '.join(sorted(users))}.")
        else:
            topics.append(topic)
    return topics, kept


async def _delete_group(admin: Admin, name: str) -> None:
    """Delete a group and its configs, which brokers keep otherwise."""
    for error in (await admin.groups.delete([name])).values():
        if error is not None and error.code is not ErrorCode.group_id_not_found:
            raise error
    resource = queue_settings.make_group(name)
    own = queue_settings.list_own(await queue_settings.read_configs(admin, resource))
    if own:
        changes = [ConfigChange(config, None, AlterOperation.DELETE) for config in own]
        expect(await admin.configs.alter({resource: changes}))
    say(f"Deleted group {name} and its settings.")


def _format_partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
