"""`shoal transactions`: what producers have open, and transactions that hang, as Kafka's
`kafka-transactions` shows and ends them (KIP-664).
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output, prompts, timestamps
from shoal.cli.groups import partitions as parsed_partitions
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, command, new_app, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.errors import KafkaError, expect
from shoal.client.transactions import ProducerState

if TYPE_CHECKING:
    pass

app = new_app("List and describe transactions; find and end those that hang.")

Id = Annotated[str, typer.Argument(metavar="ID", help="A transactional id.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Transactional ids.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@command(app, "list")
async def list_transactions(
    client: Client,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="Ongoing|PrepareCommit|...", help="Only this state; may be repeated."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option(help="Only this producer id; may be repeated.")
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option(metavar="10m", help="Only transactions that have run for longer."),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List transactional ids, their producer ids and states."""
    found = await client.admin.transactions.list(
        states=state or (),
        producer_ids=producer_id or (),
        longer_than_ms=-1 if longer_than is None else _duration_ms("--longer-than", longer_than),
    )
    rows = [
        {
            "transactional_id": one.transactional_id,
            "producer_id": one.producer_id,
            "state": one.state,
            "coordinator": one.coordinator,
        }
        for one in found.values()
    ]
    output.rows(format, rows, empty="There are no such transactional ids.")


@command(app, "describe")
async def describe(client: Client, ids: Ids, format: FormatOption = Format.TABLE) -> None:
    """Show transactional ids in detail: the partitions of the transaction, and when it began."""
    rows = [
        {
            "transactional_id": one.transactional_id,
            "state": one.state,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "began": output.when(one.start_ms),
            "timeout_ms": one.timeout_ms,
            "coordinator": one.coordinator,
            "partitions": [str(where) for where in one.partitions],
        }
        for one in expect(await client.admin.transactions.describe(ids)).values()
    ]
    expendable = ["coordinator", "producer_epoch", "timeout_ms", "producer_id"]
    output.rows(format, rows, expendable=expendable)


@command(app, "producers")
async def producers(
    client: Client,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC[:0,1]", help="A topic, or some of its partitions.")
    ],
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the idempotent and transactional producers in the logs of partitions."""
    where = await parsed_partitions(client, [topic], "TOPIC")
    rows = [
        _producer_row(partition, one)
        for partition, found in expect(await client.admin.transactions.producers(where)).items()
        for one in found
    ]
    output.rows(
        format,
        rows,
        ["partition", "producer_id", "producer_epoch", "last_write", "transaction_start_offset"],
        empty=f"No producer of {topic} is known.",
        expendable=["producer_epoch", "last_write"],
    )


@command(app, "find-hanging")
async def find_hanging(
    client: Client,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,1]", help="Only this topic. Default: all topics."
        ),
    ] = None,
    broker: Annotated[
        int | None, typer.Option(help="Only partitions that this broker leads.")
    ] = None,
    max_transaction_timeout: Annotated[
        str,
        typer.Option(
            metavar="15m",
            help="The brokers' transaction.max.timeout.ms. A transaction that has written since"
            " then does not hang.",
        ),
    ] = "15m",
    format: FormatOption = Format.TABLE,
) -> None:
    """Find transactions that are open in a partition, and that no coordinator will end. They hold
    back readers of committed records.
    """
    timeout_ms = _duration_ms("--max-transaction-timeout", max_transaction_timeout)
    where = await _candidates(client, topic, broker)
    before_ms = int(time.time() * 1000) - timeout_ms
    found: list[tuple[TopicPartition, ProducerState]] = []
    for partition, known in (await client.admin.transactions.producers(where)).items():
        if isinstance(known, KafkaError):
            warn(f"{partition} is left out: {known}.")
            continue
        found += [
            (partition, one)
            for one in known
            if one.transaction_start_offset >= 0 and one.last_timestamp_ms <= before_ms
        ]
    rows = [_producer_row(*one) for one in await _hanging(client, found)]
    columns = ["topic", "partition", "producer_id", "transaction_start_offset", "last_write"]
    output.rows(format, rows, columns, empty="No transaction hangs.", expendable=["last_write"])
    if rows and format is Format.TABLE:
        say(
            "\nTo abort one: shoal transactions abort TOPIC:PARTITION --start-offset OFFSET",
            file=sys.stderr,
        )


@command(app, "abort")
async def abort(
    client: Client,
    partition: Annotated[
        str, typer.Argument(metavar="TOPIC:PARTITION", help="The partition that has it open.")
    ],
    start_offset: Annotated[
        int, typer.Option(metavar="OFFSET", help="The transaction's first offset there.")
    ],
    yes: Yes = False,
) -> None:
    """Abort a hanging transaction in one partition, without its coordinator."""
    where = await parsed_partitions(client, [partition], "PARTITION")
    if len(where) != 1 or ":" not in partition:
        raise Failed(f"name one partition, as TOPIC:PARTITION, not {partition!r}.", USAGE)
    (found,) = expect(await client.admin.transactions.producers(where)).values()
    producer = next((one for one in found if one.transaction_start_offset == start_offset), None)
    if producer is None:
        raise Failed(
            f"no transaction that began at offset {start_offset} is open in {where[0]}. Show them"
            f" with `shoal transactions producers {partition}`."
        )
    _confirm(
        f"Abort the transaction of producer {producer.producer_id} in {where[0]}, without its"
        " coordinator?",
        yes,
    )
    await client.admin.transactions.abort(where[0], producer)
    say(f"Aborted the transaction of producer {producer.producer_id} in {where[0]}.")


@command(app, "terminate")
async def terminate(client: Client, id: Id, yes: Yes = False) -> None:
    """End the transaction of a transactional id: its producer is fenced, and its coordinator aborts
    the transaction in all partitions.
    """
    expect(await client.admin.transactions.describe([id]))
    _confirm(f"Fence the producer of {id} and abort its transaction?", yes)
    await client.admin.transactions.terminate(id)
    say(f"Fenced the producer of {id}. Its open transaction is aborted.")


async def _candidates(
    client: Client, topics: list[str] | None, broker: int | None
) -> list[TopicPartition]:
    """Return the partitions to search, all by default."""
    named = await parsed_partitions(client, topics) if topics else None
    found = await client.admin.topics.list(internal=True)
    return [
        where
        for topic in found.values()
        for p in topic.partitions
        if (where := TopicPartition(topic.name, p.index))
        and (named is None or where in named)
        and (p.leader_id == broker if broker is not None else p.leader_id >= 0)
    ]


async def _hanging(
    client: Client, open_ones: list[tuple[TopicPartition, ProducerState]]
) -> list[tuple[TopicPartition, ProducerState]]:
    """Return those of which no coordinator has the partition in its transaction."""
    if not open_ones:
        return []
    ids = sorted({producer.producer_id for _, producer in open_ones})
    listed = await client.admin.transactions.list(producer_ids=ids)
    described = await client.admin.transactions.describe(listed)
    in_transaction: set[tuple[int, TopicPartition]] = set()
    for one in described.values():
        if isinstance(one, KafkaError):
            warn(f"a transactional id is left out: {one}.")
            continue
        in_transaction |= {(one.producer_id, where) for where in one.partitions}
    unknown = {
        listed[id].producer_id for id, one in described.items() if isinstance(one, KafkaError)
    }
    return [
        (where, producer)
        for where, producer in open_ones
        if (producer.producer_id, where) not in in_transaction
        and producer.producer_id not in unknown
    ]


def _producer_row(where: TopicPartition, producer: ProducerState) -> dict[str, Any]:
    start = producer.transaction_start_offset
    return {
        "topic": where.topic,
        "partition": where.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_write": output.when(producer.last_timestamp_ms),
        "transaction_start_offset": start if start >= 0 else None,
    }


def _duration_ms(option: str, text: str) -> int:
    found = timestamps.duration_ms(text)
    if found is None:
        raise Failed(f"{option} must be like 90s, 15m or 2h, not {text!r}.", USAGE)
    return found


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failed("--yes is missing: nobody can be asked.", USAGE)
    prompts.confirm(question)
