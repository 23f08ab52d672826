"""`shoal transactions`: what producers have open, and transactions that hang, as Kafka's
`kafka-transactions` shows and ends them (KIP-664).
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output, prompts, timestamps
from shoal.cli.commands.groups import parse_partitions as parsed_partitions
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.admin.transactions import ProducerState
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition

if TYPE_CHECKING:
    pass

app = make_app("List and describe transactions; find and end those that hang.")

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
    listings = await client.admin.transactions.list(
        states=state or (),
        producer_ids=producer_id or (),
        longer_than_ms=-1
        if longer_than is None
        else _parse_duration_ms("--longer-than", longer_than),
    )
    rows = [
        {
            "transactional_id": listing.transactional_id,
            "producer_id": listing.producer_id,
            "state": listing.state,
            "coordinator": listing.coordinator,
        }
        for listing in listings.values()
    ]
    output.print_rows(format, rows, empty="There are no such transactional ids.")


@command(app, "describe")
async def describe(client: Client, ids: Ids, format: FormatOption = Format.TABLE) -> None:
    """Show transactional ids in detail: the partitions of the transaction, and when it began."""
    rows = [
        {
            "transactional_id": transaction.transactional_id,
            "state": transaction.state,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "began": output.format_timestamp(transaction.start_ms),
            "timeout_ms": transaction.timeout_ms,
            "coordinator": transaction.coordinator,
            "partitions": [str(partition) for partition in transaction.partitions],
        }
        for transaction in expect(await client.admin.transactions.describe(ids)).values()
    ]
    expendable = ["coordinator", "producer_epoch", "timeout_ms", "producer_id"]
    output.print_rows(format, rows, expendable=expendable)


@command(app, "producers")
async def producers(
    client: Client,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC[:0,1]", help="A topic, or some of its partitions.")
    ],
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the idempotent and transactional producers in the logs of partitions."""
    partitions = await parsed_partitions(client, [topic], "TOPIC")
    rows = [
        _make_producer_row(partition, state)
        for partition, states in expect(
            await client.admin.transactions.producers(partitions)
        ).items()
        for state in states
    ]
    output.print_rows(
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
    timeout_ms = _parse_duration_ms("--max-transaction-timeout", max_transaction_timeout)
    partitions = await _find_candidates(client, topic, broker)
    before_ms = int(time.time() * 1000) - timeout_ms
    open_transactions: list[tuple[TopicPartition, ProducerState]] = []
    for partition, states in (await client.admin.transactions.producers(partitions)).items():
        if isinstance(states, KafkaError):
            warn(f"{partition} is left out: {states}.")
            continue
        open_transactions += [
            (partition, state)
            for state in states
            if state.transaction_start_offset >= 0 and state.last_timestamp_ms <= before_ms
        ]
    rows = [
        _make_producer_row(*transaction)
        for transaction in await _select_hanging(client, open_transactions)
    ]
    columns = ["topic", "partition", "producer_id", "transaction_start_offset", "last_write"]
    output.print_rows(
        format, rows, columns, empty="No transaction hangs.", expendable=["last_write"]
    )
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
    partitions = await parsed_partitions(client, [partition], "PARTITION")
    if len(partitions) != 1 or ":" not in partition:
        raise CommandError(f"name one partition, as TOPIC:PARTITION, not {partition!r}.", USAGE)
    (states,) = expect(await client.admin.transactions.producers(partitions)).values()
    producer = next(
        (state for state in states if state.transaction_start_offset == start_offset), None
    )
    if producer is None:
        raise CommandError(
            f"no transaction that began at offset {start_offset} is open in {partitions[0]}. Show "
            f"them with `shoal transactions producers {partition}`."
        )
    _confirm(
        f"Abort the transaction of producer {producer.producer_id} in {partitions[0]}, without its"
        " coordinator?",
        yes,
    )
    await client.admin.transactions.abort(partitions[0], producer)
    say(f"Aborted the transaction of producer {producer.producer_id} in {partitions[0]}.")


@command(app, "terminate")
async def terminate(client: Client, id: Id, yes: Yes = False) -> None:
    """End the transaction of a transactional id: its producer is fenced, and its coordinator aborts
    the transaction in all partitions.
    """
    expect(await client.admin.transactions.describe([id]))
    _confirm(f"Fence the producer of {id} and abort its transaction?", yes)
    await client.admin.transactions.terminate(id)
    say(f"Fenced the producer of {id}. Its open transaction is aborted.")


async def _find_candidates(
    client: Client, topics: list[str] | None, broker: int | None
) -> list[TopicPartition]:
    """Return the partitions to search, all by default."""
    chosen = await parsed_partitions(client, topics) if topics else None
    listed_topics = await client.admin.topics.list(internal=True)
    return [
        partition
        for topic in listed_topics.values()
        for p in topic.partitions
        if (partition := TopicPartition(topic.name, p.index))
        and (chosen is None or partition in chosen)
        and (p.leader_id == broker if broker is not None else p.leader_id >= 0)
    ]


async def _select_hanging(
    client: Client, open_ones: list[tuple[TopicPartition, ProducerState]]
) -> list[tuple[TopicPartition, ProducerState]]:
    """Return those of which no coordinator has the partition in its transaction."""
    if not open_ones:
        return []
    ids = sorted({producer.producer_id for _, producer in open_ones})
    listed = await client.admin.transactions.list(producer_ids=ids)
    described = await client.admin.transactions.describe(listed)
    in_transaction: set[tuple[int, TopicPartition]] = set()
    for transaction in described.values():
        if isinstance(transaction, KafkaError):
            warn(f"a transactional id is left out: {transaction}.")
            continue
        in_transaction |= {
            (transaction.producer_id, partition) for partition in transaction.partitions
        }
    unknown = {
        listed[id].producer_id
        for id, transaction in described.items()
        if isinstance(transaction, KafkaError)
    }
    return [
        (partition, producer)
        for partition, producer in open_ones
        if (producer.producer_id, partition) not in in_transaction
        and producer.producer_id not in unknown
    ]


def _make_producer_row(partition: TopicPartition, producer: ProducerState) -> dict[str, Any]:
    start = producer.transaction_start_offset
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_write": output.format_timestamp(producer.last_timestamp_ms),
        "transaction_start_offset": start if start >= 0 else None,
    }


def _parse_duration_ms(option: str, text: str) -> int:
    duration_ms = timestamps.parse_duration_ms(text)
    if duration_ms is None:
        raise CommandError(f"{option} must be like 90s, 15m or 2h, not {text!r}.", USAGE)
    return duration_ms


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("--yes is missing: nobody can be asked.", USAGE)
    prompts.confirm(question)
