"""Common parts of feeders: arguments, topics, the group's configs, and pipelined sending."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.settings import Settings
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Maximum number of records in flight.
WINDOW = 500


class Task(NamedTuple):
    """A record of the queue."""

    key: str
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def build_parser(
    doc: str | None, *, topic: str, count: int, broken_every: int
) -> argparse.ArgumentParser:
    """Return a parser of the common arguments; the caller adds the others."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    server = os.environ.get("SHOAL_BOOTSTRAP_SERVERS", "localhost:9092")
    parser.add_argument("--bootstrap-servers", default=server)
    parser.add_argument("--topic", default=topic)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument(
        "--broken-every", type=int, default=broken_every, help="one task in N is broken; 0 for none"
    )
    parser.add_argument("--group", default="", help="a share group to configure")
    parser.add_argument("--dead-letters", default="", help="the group's dead-letter topic")
    parser.add_argument("--results-topic", default="", help="a topic to create for results")
    parser.add_argument(
        "--spread", action="store_true", help="distribute over partitions in turn, not by key"
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a config of the group, such as share.ordering=key",
    )
    return parser


def run(args: argparse.Namespace, tasks: Iterable[Task], what: str) -> None:
    """Fill the queue and print the result; exit with an error message on failure."""
    try:
        print(f"{asyncio.run(_feed(args, tasks))} {what} are in topic {args.topic}.")
    except (ClientError, OSError, ValueError) as error:
        sys.exit(f"{os.path.basename(sys.argv[0]).removesuffix('.py')}: {error}")


def break_every_nth(tasks: Iterable[Task], every: int, part: int) -> Iterator[Task]:
    """Truncate the value of each `every`th task after one `part`th."""
    for number, task in enumerate(tasks):
        if every and number % every == every - 1:
            task = task._replace(value=task.value[: len(task.value) // part])
        yield task


async def _feed(args: argparse.Namespace, tasks: Iterable[Task]) -> int:
    path = os.environ.get("SHOAL_COMMAND_CONFIG")
    settings = Settings.from_file(args.bootstrap_servers, Path(path) if path else None)
    async with Client(settings) as client:
        await _prepare(client, args)
        # From here on a member of the group gets every record, whenever it joins.
        print(f"Topic {args.topic} is ready.", flush=True)
        waiting, sent = [], 0
        async with client.producer() as producer:
            for number, task in enumerate(tasks):
                waiting.append(
                    await producer.send(
                        args.topic,
                        task.value,
                        key=task.key.encode(),
                        headers=list(task.headers),
                        partition=number % args.partitions if args.spread else None,
                    )
                )
                if len(waiting) == WINDOW:
                    await asyncio.gather(*waiting)
                    sent, waiting = sent + len(waiting), []
            await asyncio.gather(*waiting)
        return sent + len(waiting)


async def _prepare(client: Client, args: argparse.Namespace) -> None:
    """Create the topics and set the group's configs."""
    topics: dict[str, dict[str, str]] = {args.topic: {}, args.results_topic: {}}
    topics[args.dead_letters] = {"errors.deadletterqueue.group.enable": "true"}
    for name, configs in topics.items():
        if name:
            await _make(client, args, name, configs)
    if not args.group:
        return
    configs = {"share.auto.offset.reset": "earliest"}
    configs |= dict(pair.partition("=")[::2] for pair in args.config)
    if args.dead_letters:
        configs["errors.deadletterqueue.topic.name"] = args.dead_letters
        configs["errors.deadletterqueue.copy.record.enable"] = "true"
    group = ConfigResource(ConfigResourceType.GROUP, args.group)
    changes = [ConfigChange(name, value) for name, value in configs.items()]
    expect(await client.admin.configs.alter({group: changes}))


async def _make(
    client: Client, args: argparse.Namespace, name: str, configs: Mapping[str, str]
) -> None:
    topic = NewTopic(name, args.partitions, args.replication_factor, configs=dict(configs))
    made = (await client.admin.topics.create([topic]))[name]
    if isinstance(made, KafkaError) and made.code != ErrorCode.topic_already_exists:
        raise made
