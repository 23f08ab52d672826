"""`shoal topics`: topics, their configs and their offsets."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from shoal.cli import output, prompts, timestamps
from shoal.cli.client_properties import parse_pairs
from shoal.cli.commands import reassign
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
)
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.metadata import Topic
from shoal.monitoring import remedies
from shoal.protocol.errors import ErrorCode

app = make_app("Manage topics, move their replicas, and delete old records.")
app.add_typer(reassign.app, name="reassign")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic config; may be repeated."),
]


@command(app, "list")
async def list_topics(
    client: Client,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """List topics."""
    topics = await client.admin.topics.list(internal=internal)
    rows = [
        {
            "topic": t.name,
            "partitions": len(t.partitions),
            "replicas": len(t.partitions[0].replicas) if t.partitions else 0,
            "topic_id": output.format_topic_id(t.topic_id),
        }
        for t in topics.values()
    ]
    output.print_rows(
        format, rows, empty="There are no topics. Create one with `shoal topics create NAME`."
    )


@command(app, "create")
async def create(
    client: Client,
    topics: Names,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            "-p",
            show_default=False,
            help="Number of partitions. Default: the broker's.",
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(show_default=False, help="Replicas of each partition. Default: the broker's."),
    ] = -1,
    config: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Ignore topics that exist.")
    ] = False,
) -> None:
    """Create topics."""
    if partitions == 0 or partitions < -1:
        raise CommandError(f"--partitions must be at least 1, not {partitions}.", USAGE)
    configs = _parse_pairs(config, "--config")
    new = [NewTopic(name, partitions, replication_factor, configs) for name in topics]
    results = await client.admin.topics.create(new)
    failures = {}
    for name, result in results.items():
        if not isinstance(result, KafkaError):
            say(f"Created topic {name} with {_format_count(result.partitions, 'partition')}.")
        elif if_not_exists and result.code == ErrorCode.topic_already_exists:
            say(f"Topic {name} already exists.")
        else:
            failures[name] = result
    _fail_for(failures)


@command(app, "describe")
async def describe(
    client: Client,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Names of topics. Default: all topics."),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show partitions, leaders, replicas, offsets and non-default configs."""
    admin = client.admin
    topics_by_name = (
        expect(await admin.topics.describe(topics)) if topics else await admin.topics.list()
    )
    partitions = [
        TopicPartition(t.name, p.index) for t in topics_by_name.values() for p in t.partitions
    ]
    starts = await admin.topics.offsets(dict.fromkeys(partitions, int(OffsetSpec.EARLIEST)))
    ends = await admin.topics.offsets(dict.fromkeys(partitions, int(OffsetSpec.LATEST)))
    resources = {name: ConfigResource(ConfigResourceType.TOPIC, name) for name in topics_by_name}
    configs = expect(await admin.configs.describe(resources.values()))
    described: list[dict[str, Any]] = []
    for name, topic in topics_by_name.items():
        changed = {
            c.name: c.value
            for c in configs.get(resources[name], {}).values()
            if c.source == 1  # DYNAMIC_TOPIC_CONFIG: set on this topic
        }
        rows = [_make_partition_row(topic, p, starts, ends) for p in range(len(topic.partitions))]
        described.append(
            {
                "topic": name,
                "topic_id": output.format_topic_id(topic.topic_id),
                "internal": topic.internal,
                "configs": changed,
                "partitions": rows,
            }
        )
    if format is not Format.TABLE:
        output.print_rows(format, described)
        return
    for index, entry in enumerate(described):
        if index:
            say()
        title = f"{entry['topic']}   id {entry['topic_id']}"
        configs_text = output.format_cell(entry["configs"])
        output.print_table(
            entry["partitions"],
            ["partition", "leader", "replicas", "isr", "log_start_offset", "log_end_offset"],
            title + ("" if configs_text == "-" else f"   {configs_text}"),
            expendable=["log_start_offset"],
        )


def _make_partition_row(topic: Topic, index: int, starts: Any, ends: Any) -> dict[str, Any]:
    part = topic.partitions[index]
    partition = TopicPartition(topic.name, index)
    start, end = starts.get(partition), ends.get(partition)
    return {
        "partition": index,
        "leader": part.leader_id if part.leader_id >= 0 else None,
        "replicas": list(part.replicas),
        "isr": list(part.isr),
        "log_start_offset": None if isinstance(start, KafkaError) else start.offset,
        "log_end_offset": None if isinstance(end, KafkaError) else end.offset,
    }


@command(app, "alter")
async def alter(
    client: Client,
    topic: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", help="Increase to this number of partitions."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a config.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Restore a config's default.")
    ] = None,
) -> None:
    """Add partitions, set and unset configs."""
    changes = [ConfigChange(n, v) for n, v in _parse_pairs(set_, "--set").items()]
    changes += [ConfigChange(name, None, AlterOperation.DELETE) for name in unset or ()]
    if partitions is None and not changes:
        raise CommandError("there is nothing to alter. Use --partitions, --set or --unset.", USAGE)
    expect(await client.admin.topics.describe([topic]))
    if changes:
        expect(
            await client.admin.configs.alter(
                {ConfigResource(ConfigResourceType.TOPIC, topic): changes}
            )
        )
    if partitions is not None:
        expect(await client.admin.topics.create_partitions({topic: partitions}))
    say(f"Altered topic {topic}.")


@command(app, "delete")
async def delete(
    client: Client,
    topics: Names,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete topics with all their records."""
    if not yes and sys.stdin.isatty():
        prompts.confirm(f"Delete {', '.join(topics)} with all records?")
    descriptions = await client.admin.topics.describe(topics)
    present = [name for name, t in descriptions.items() if not isinstance(t, KafkaError)]
    results = await client.admin.topics.delete(present) if present else {}
    failures = {
        n: e for n, e in descriptions.items() if isinstance(e, KafkaError) and not if_exists
    }
    for name in present:
        error = results.get(name)
        if error is None:
            say(f"Deleted topic {name}.")
        else:
            failures[name] = error
    _fail_for(failures)


@command(app, "delete-records")
async def delete_records(
    client: Client,
    topic: Name,
    before: Annotated[
        str, typer.Option(metavar="OFFSET|TIME|all", help="Delete records before this.")
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition; may be repeated."),
    ] = None,
) -> None:
    """Delete records before an offset or a time (2026-01-31T12:00 or 7d), or all records."""
    description = expect(await client.admin.topics.describe([topic]))[topic]
    indexes = partition or [p.index for p in description.partitions]
    partitions = [TopicPartition(topic, description.get_partition(i).index) for i in indexes]
    if before == "all":
        targets = dict.fromkeys(partitions, -1)
    elif before.isdigit():
        targets = dict.fromkeys(partitions, int(before))
    else:
        listed = await client.admin.topics.offsets(
            dict.fromkeys(partitions, timestamps.parse_timestamp(before))
        )
        targets = {p: o.offset for p, o in expect(listed).items()}
    results = expect(await client.admin.topics.delete_records(targets))
    output.print_rows(
        Format.TABLE,
        [{"partition": p.partition, "log_start_offset": o} for p, o in sorted(results.items())],
    )


@command(app, "offsets")
async def offsets(
    client: Client,
    topic: Name,
    at: Annotated[
        str, typer.Option(metavar="latest|earliest|max-timestamp|TIME", help="The offset to show.")
    ] = "latest",
    format: FormatOption = Format.TABLE,
) -> None:
    """Show each partition's offset at the end, the start or a time."""
    special_specs = {
        "latest": OffsetSpec.LATEST,
        "earliest": OffsetSpec.EARLIEST,
        "max-timestamp": OffsetSpec.MAX_TIMESTAMP,
    }
    spec = int(special_specs[at]) if at in special_specs else timestamps.parse_timestamp(at)
    description = expect(await client.admin.topics.describe([topic]))[topic]
    specs = {TopicPartition(topic, p.index): spec for p in description.partitions}
    listed = expect(await client.admin.topics.offsets(specs))
    rows = [
        {
            "partition": partition.partition,
            "offset": o.offset if o.offset >= 0 else None,
            "timestamp": output.format_timestamp(o.timestamp_ms),
        }
        for partition, o in sorted(listed.items())
    ]
    output.print_rows(format, rows)


def _parse_pairs(words: list[str] | None, option: str) -> dict[str, str]:
    try:
        return parse_pairs(words, option)
    except ValueError as error:
        raise CommandError(f"{error}.", USAGE) from None


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _fail_for(failures: dict[str, KafkaError]) -> None:
    if failures:
        raise CommandError(" ".join(remedies.format_remedy(error) for error in failures.values()))
