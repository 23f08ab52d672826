"""Copies a topic to another one exactly once, as a separate process that can be killed.

`python exactly_once_worker.py BOOTSTRAP GROUP SOURCE TARGET SEED MODE` prints a line with the
number of records after each committed transaction, and ends after an error of the
cluster. MODE is
`positions` (a reader of the whole topic, as one producer under the group's name), `ranges` (a
member of the group with individual commits, which finishes records in any order) or `shared-` and a
name (one of several members that share partitions by key ranges), or `ordered-` and a name (the
same, in the order of the partitions; SOURCE may name several topics, with commas). About every
fourth transaction is aborted and repeated. A copy has the source's partition and offset as value,
and the key of the source; one in order also has the source, and a name of its transaction.
`Copier` is the other side: it starts a process and restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit, Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import ClientError, TransactionAbortable, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.produce.transactional import GroupMetadata as Group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shoal.client.consume.consumer import Record
    from shoal.client.produce.transactional import TransactionalProducer

RECORDS_MAX = 20
#: Exit code after an error that ends the producer; the process is started again.
AGAIN = 75


class Copier:
    """A process that is started again until `stop`."""

    def __init__(self, *words: str, restarts_max: int = 20) -> None:
        self.copied = 0
        self.failure = ""
        self._words = words
        self._left = restarts_max
        self._stopped = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            process = subprocess.Popen(
                [sys.executable, __file__, *self._words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._process = process
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                self.copied += int(line) if line.endswith("\n") else 0
            said = process.stderr.read()
            if process.wait() not in (AGAIN, -9) or not self._left:
                self.failure = said or f"it ended with {process.returncode}"
                return
            self._left -= 1

    def kill9(self) -> None:
        """Kill the process; the next one starts at once."""
        if self._process is not None:
            self._process.kill()

    def check(self) -> None:
        assert not self.failure, self.failure

    def stop(self) -> None:
        self._stopped = True
        while self._thread.is_alive():
            self.kill9()
            self._thread.join(0.05)


class Repeat(Exception):
    """Aborts a transaction that is then repeated."""


class Copy:
    """Copies records in transactions."""

    def __init__(
        self,
        producer: TransactionalProducer,
        target: str,
        rng: random.Random,
        *,
        in_order: bool = False,
    ) -> None:
        self.producer = producer
        self.in_order = in_order
        self._target = target
        self._random = rng

    async def transact(
        self, records: Sequence[Record], offsets: Callable[[], Awaitable[None]]
    ) -> None:
        """Copy the records and commit their offsets; at times, abort that first."""
        while True:
            try:
                await self.once(records, offsets)
            except Repeat:
                continue
            return

    async def once(
        self,
        records: Sequence[Record],
        offsets: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Copy the records in a transaction. Raises `Repeat` at times."""
        name = f"{os.getpid()}.{self._random.randrange(1 << 40)}"
        async with self.producer.transaction():
            for record in records:
                value = b"%d:%d" % (record.partition, record.offset)
                if self.in_order:
                    value += f":{record.topic}:{name}".encode()
                await self.producer.send(
                    self._target, value, key=record.key, partition=record.partition
                )
            if offsets is not None:
                await offsets()
            if not self._random.randrange(4):
                raise Repeat
        os.write(1, b"%d\n" % len(records))


async def positions(client: Client, group: str, source: str, copy: Copy) -> None:
    topic = await client.cluster.get_topic(source)
    where = [TopicPartition(source, p.index) for p in topic.partitions]
    found = expect(await client.admin.groups.offsets([group], require_stable=True))[group]
    at = {p: found[p].offset if p in found else 0 for p in where}
    reader = Reader(client.cluster, at, isolation=Isolation.READ_COMMITTED)
    while True:
        some = list(await reader.poll(200))
        for begin in range(0, len(some), RECORDS_MAX):
            chunk = some[begin : begin + RECORDS_MAX]
            ends = {TopicPartition(source, r.partition): r.offset + 1 for r in chunk}
            await copy.transact(chunk, partial(copy.producer.send_offsets, Group(group), ends))


async def ranges(client: Client, group: str, source: str, copy: Copy, rng: random.Random) -> None:
    async with await GroupConsumer.join(
        client.cluster,
        group,
        [source],
        reset=Reset.EARLIEST,
        isolation=Isolation.READ_COMMITTED,
        individual_commit=IndividualCommit(interval_ms=100),
    ) as consumer:
        held: list[Record] = []
        while True:
            if len(held) < RECORDS_MAX:
                held += await consumer.poll(200)
                rng.shuffle(held)
            else:
                await consumer.tend()
            chunk, held = held[:RECORDS_MAX], held[RECORDS_MAX:]
            if chunk:
                await copy.transact(chunk, partial(copy.producer.send_finished, consumer, chunk))


async def shared(client: Client, group: str, source: str, copy: Copy) -> None:
    async with await GroupConsumer.join(
        client.cluster,
        group,
        source.split(","),
        reset=Reset.EARLIEST,
        isolation=Isolation.READ_COMMITTED,
        key_ranges=True,
        producer=copy.producer,
        in_order=copy.in_order,
    ) as consumer:
        while True:
            if records := list(await consumer.poll(200)):
                # After an abort, `poll` returns the records again.
                with contextlib.suppress(TransactionAbortable, Repeat):
                    await copy.once(records)


async def main(bootstrap: str, group: str, source: str, target: str, seed: str, mode: str) -> None:
    rng = random.Random(f"{seed}-{os.getpid()}")
    async with Client(bootstrap) as client:
        if mode in ("positions", "ranges"):
            producer = await client.transactional_producer(group)
        else:
            # The ranges of a killed member wait until its transaction ends.
            producer = await client.transactional_producer(f"{group}-{mode}", timeout_ms=10_000)
        copy = Copy(producer, target, rng, in_order=mode.startswith("ordered-"))
        if mode == "positions":
            await positions(client, group, source, copy)
        elif mode != "ranges":
            await shared(client, group, source, copy)
        else:
            await ranges(client, group, source, copy, rng)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except ClientError as error:
        print(error, file=sys.stderr)
        sys.exit(AGAIN)
