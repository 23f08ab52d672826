"""A cluster as a client sees it: brokers, topics, leaders, coordinators and connections.

`Cluster` owns all connections, one for each broker and lane. A broker answers one connection in
order. So requests that wait on purpose (fetches) and requests that must not wait (heartbeats) use
different lanes. `Cluster` also owns the metadata cache; a caller that gets an error of
`STALE_METADATA` calls `forget_topic`.

Some requests can go to any broker. If the answer turns out to be useless, the next request goes to
another broker: a broker that is cut off from the cluster still answers, but has old metadata. If no
answer comes, another broker gets the request as well: a stopped process keeps its connections open.

`scatter` handles all calls on many objects. It locates each object's broker, sends each broker one
request for all of its objects, and retries the objects that have moved. One object's error never
hides another's result.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shoal.client.errors import (
    STALE_COORDINATOR,
    STALE_METADATA,
    ClientError,
    ConnectionLost,
    KafkaError,
    LoginUnavailable,
    RequestTimeout,
    Unreachable,
    WrongBroker,
    check,
    is_transient,
)
from shoal.client.net.connection import (
    BrokerIdentity,
    Connection,
    connect,
    wait_for_connection,
)
from shoal.client.net.environment import HERE, Environment
from shoal.client.net.metadata import (
    NO_SUCH_TOPIC,
    BrokerInfo,
    Topic,
    describe_topic,
    keep_newer_leaders,
    parse_topic,
)
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from random import Random
    from uuid import UUID

    from shoal.client.settings import Address, Settings

_log = logging.getLogger("shoal.client")
K = TypeVar("K")
V = TypeVar("V")
GROUP, TRANSACTION, SHARE = 0, 1, 2
#: Kafka's retry.backoff.ms and retry.backoff.max.ms.
BACKOFF_MS, BACKOFF_MS_MAX = 100, 1_000
#: Seconds for which an unhelpful, or an unreachable, broker is the last choice.
DOUBTED_S, SILENT_S = 2.0, 30.0
#: Seconds to wait for a connection, or an answer, if another broker can serve the request too.
PATIENCE_S = 1.0
#: Topics in one Metadata request, so that frames of large clusters stay small.
TOPICS_PER_REQUEST = 1_000


class TopicPartition(NamedTuple):
    """A partition, named by topic and index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RetryBackoff:
    """Growing pauses with 20 % jitter, so that clients do not retry at the same moment."""

    def __init__(self, random: Random, first_ms: int, most_ms: int) -> None:
        self._random = random
        self._next_ms = self._first_ms = first_ms
        self._most_ms = most_ms

    async def pause(self) -> None:
        await asyncio.sleep(self._next_ms / 1000 * self._random.uniform(0.8, 1.2))
        self._next_ms = min(self._next_ms * 2, self._most_ms)

    def reset(self) -> None:
        self._next_ms = self._first_ms


class Cluster:
    """The connections to one cluster. Call `await close()` at the end, or use `async with`."""

    def __init__(self, settings: Settings, environment: Environment = HERE) -> None:
        self.settings = settings
        self.environment = environment
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerInfo] = {}
        self._loop = asyncio.get_running_loop()
        #: The time of the last read, and the topic; expired ones stay for their leader epochs.
        self._topics: dict[str, tuple[float, Topic]] = {}
        self._names: dict[UUID, str] = {}
        #: Topics that members subscribe to, and that did not exist.
        self._missed: set[str] = set()
        self._coordinators: dict[tuple[int, str], int] = {}
        self._connections: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        #: The broker that answered `ask` last; and until when each doubted broker is the last
        #: choice.
        self._last_answered: Address | None = None
        self._asked_later: dict[Address, float] = {}
        #: Requests that another broker has answered in the meantime.
        self._outrun: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Pending and later requests fail with `ConnectionLost`."""
        self._closed = True
        opening = list(self._connections.values())
        self._connections.clear()
        for task in opening:
            task.cancel()
        for opened in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(opened, Connection):
                opened.close()
        await asyncio.gather(*self._outrun, return_exceptions=True)

    def make_backoff(
        self, first_ms: int = BACKOFF_MS, most_ms: int = BACKOFF_MS_MAX
    ) -> RetryBackoff:
        """Return the pauses of a new series of retries."""
        return RetryBackoff(self.environment.random, first_ms, most_ms)

    # Connections

    async def _get_connection(self, address: Address, lane: str) -> Connection:
        if self._closed:
            raise ConnectionLost("this client is closed")
        key = (address, lane)
        task = self._connections.get(key)
        if task is not None and task.done():
            if task.cancelled() or task.exception() is not None or task.result().closed:
                task = None
        if task is None:
            meant = self._find_identity(address)
            task = self._loop.create_task(connect(self.settings, address, meant))
            self._connections[key] = task
        try:
            return await wait_for_connection(task, address)
        except WrongBroker:
            # Another broker of the cluster, or a bootstrap address, knows where it is now.
            self.brokers = {id: b for id, b in self.brokers.items() if (b.host, b.port) != address}
            raise

    def _find_identity(self, address: Address) -> BrokerIdentity | None:
        """Return the broker that should answer at an address; None for an address that no broker,
        or more than one, has, as behind a load balancer."""
        ids = [b.node_id for b in self.brokers.values() if (b.host, b.port) == address]
        if self.cluster_id is None or len(ids) != 1:
            return None
        return BrokerIdentity(self.cluster_id, ids[0])

    async def get_connection(self, node_id: int, lane: str = "") -> Connection:
        """Return an open connection to a broker. Raises `Unreachable` or an error of `connect`."""
        broker = self.brokers.get(node_id)
        if broker is None:
            await self.refresh(())
            broker = self.brokers.get(node_id)
        if broker is None:
            self._forget_coordinators_on(node_id)
            raise Unreachable(f"broker {node_id} is not part of the cluster's metadata")
        try:
            return await self._get_connection((broker.host, broker.port), lane)
        except Unreachable:
            self._forget_coordinators_on(node_id)
            raise

    async def request(
        self,
        node_id: int,
        api_key: ApiKey,
        body: Mapping[str, Any],
        *,
        lane: str = "",
        timeout_ms: int | None = None,
        version: int | None = None,
    ) -> Any:
        """Send one request to a broker; see `Connection.request`."""
        link = await self.get_connection(node_id, lane)
        return await link.request(api_key, body, timeout_ms=timeout_ms, version=version)

    async def ask(
        self,
        api_key: ApiKey,
        body: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version: int | None = None,
    ) -> Any:
        """Send a request to any broker. Reuse the last broker until `doubt` marks it stale.

        If a broker closes the connection before it answers, the next broker gets the request.
        Requests of `_ONCE` are not sent again. Those of `_READS` go to a second broker after
        `PATIENCE_S` without an answer, and to a third after twice that; the first answer counts.
        """
        options = {"timeout_ms": timeout_ms, "version": version}
        self._last_answered, answer = await self._wait_for_first_answer(api_key, body, options)
        return answer

    async def _wait_for_first_answer(
        self, api_key: ApiKey, body: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Address, Any]:
        """Return the first answer, and the address of its broker."""
        contacted: list[Address] = []

        def ask() -> asyncio.Task[tuple[Address, Any]]:
            return self._loop.create_task(self._ask_one(api_key, body, options, contacted))

        if api_key not in _READS or not self._count_others():
            # A write whose caller is cancelled must not be sent afterwards.
            return await self._ask_one(api_key, body, options, contacted)
        patience = iter((PATIENCE_S, 2 * PATIENCE_S))
        pending = {ask()}
        try:
            while True:
                completed, pending = await asyncio.wait(
                    pending, timeout=next(patience, None), return_when=asyncio.FIRST_COMPLETED
                )
                if answers := [task for task in completed if task.exception() is None]:
                    return answers[0].result()
                if completed and not pending:
                    return completed.pop().result()
                if not completed:
                    for address in contacted:
                        self._ask_later(address)
                    pending.add(ask())
        finally:
            for task in pending:
                self._outrun.add(task)
                task.add_done_callback(self._forget_outrun)

    def _forget_outrun(self, task: asyncio.Task[Any]) -> None:
        self._outrun.discard(task)
        if not task.cancelled():
            task.exception()  # It is nobody's: without this call, asyncio logs it.

    def _count_others(self) -> int:
        """Return how many brokers can answer if the first one does not."""
        return max(len(self.brokers), len(self.settings.bootstrap)) - 1

    async def _ask_one(
        self,
        api_key: ApiKey,
        body: Mapping[str, Any],
        options: Mapping[str, Any],
        contacted: list[Address],
    ) -> tuple[Address, Any]:
        """Ask one broker after the other until one does not close the connection, and add their
        addresses to `contacted`."""
        again = 0 if api_key in _ONCE else self._count_others() + 1
        while True:
            link = None
            try:
                link = await self.get_any_connection()
                contacted.append(link.address)
                return link.address, await link.request(api_key, body, **options)
            except ConnectionLost:
                if self._closed or not again:
                    raise
                again -= 1
            except RequestTimeout:
                if link is not None:
                    self._ask_later(link.address)
                raise

    def mark_silent(self, node_id: int) -> None:
        """Mark a broker that does not answer, so that others are asked first."""
        if broker := self.brokers.get(node_id):
            self._ask_later((broker.host, broker.port))

    def _ask_later(self, address: Address) -> None:
        """Make a silent broker the last choice."""
        self._asked_later[address] = self._loop.time() + SILENT_S

    def doubt(self) -> None:
        """Mark the last broker stale after a useless answer, so that others are asked first."""
        if self._last_answered is not None:
            self._asked_later[self._last_answered] = self._loop.time() + DOUBTED_S

    async def get_any_connection(self) -> Connection:
        """Return a connection to any broker: connected brokers first, doubted brokers last.

        A connection attempt that takes longer than `PATIENCE_S` continues in the background while
        the next broker is tried.
        """
        addresses = [(b.host, b.port) for b in self.brokers.values()]
        self.environment.random.shuffle(addresses)
        now = self._loop.time()
        self._asked_later = {a: expiry for a, expiry in self._asked_later.items() if expiry > now}
        candidates = list(dict.fromkeys([*addresses, *self.settings.bootstrap]))
        candidates.sort(key=lambda a: (self._asked_later.get(a, 0.0), self._rank_address(a)))
        failures: list[str] = []
        for address in candidates:
            last = address == candidates[-1]
            try:
                async with asyncio.timeout(None if last else PATIENCE_S):
                    return await self._get_connection(address, "")
            except Unreachable as error:
                failures.append(str(error))
            except TimeoutError:
                failures.append(f"no broker answers at {address[0]}:{address[1]} yet")
            self._asked_later[address] = self._loop.time() + SILENT_S
        unreachable = Unreachable("; ".join(failures))
        if not self.brokers:
            unreachable.add_note(_UNREACHED)
        raise unreachable

    def _rank_address(self, address: Address) -> int:
        """Rank an address: 0 for an open connection on this lane, 1 for an open one on another
        lane, 2 for none so far, 3 if all have ended.
        """
        lanes = [lane for peer, lane in self._connections if peer == address]
        opened = [lane for lane in lanes if self._is_open(address, lane)]
        if not opened:
            return 3 if lanes else 2
        return 0 if "" in opened else 1

    def _is_open(self, address: Address, lane: str) -> bool:
        task = self._connections[address, lane]
        return (
            task.done()
            and not task.cancelled()
            and not task.exception()
            and not task.result().closed
        )

    async def retry(
        self,
        attempt: Callable[[], Awaitable[V]],
        timeout_ms: int | None = None,
        *,
        pause_ms: int = BACKOFF_MS,
        pause_ms_max: int = BACKOFF_MS_MAX,
    ) -> V:
        """Call `attempt` until it succeeds, fails permanently, or `timeout_ms` is over.

        A cluster that was never reached fails at once: a wrong address is more likely than a broker
        that starts late.
        """
        deadline = self._compute_deadline(timeout_ms)
        backoff = self.make_backoff(pause_ms, pause_ms_max)
        while True:
            try:
                return await attempt()
            except ClientError as error:
                is_new = not self.brokers and self.cluster_id is None
                if is_new and isinstance(error, Unreachable | LoginUnavailable):
                    # The frames below tell a user nothing about a wrong address.
                    raise error.with_traceback(None) from None
                if is_new and isinstance(error, ConnectionLost):
                    raise Unreachable(f"{error}{self._format_listener_hint()}") from None
                if self._closed or not is_transient(error) or self._loop.time() > deadline:
                    raise
            self.doubt()
            await backoff.pause()

    def _format_listener_hint(self) -> str:
        hints = {
            "PLAINTEXT": "If it expects TLS or SASL, set security.protocol",
            "SSL": "If it expects SASL, set security.protocol to SASL_SSL",
        }
        hint = hints.get(self.settings.security.protocol)
        return f" at the first request. {hint}" if hint else ""

    def now(self) -> float:
        """Return the loop's clock in seconds."""
        return self._loop.time()

    def _compute_deadline(self, timeout_ms: int | None) -> float:
        wait_ms = self.settings.retry_timeout_ms if timeout_ms is None else timeout_ms
        return self._loop.time() + wait_ms / 1000

    # Metadata

    async def refresh(self, names: Sequence[str] | None) -> dict[str, Topic | KafkaError]:
        """Read metadata of `names`, of all topics (None), or of the brokers only (empty)."""
        topics = None if names is None else [{"name": n, "topic_id": None} for n in names]
        return await self._read_metadata(topics)

    async def _read_metadata(
        self, topics: list[dict[str, Any]] | None
    ) -> dict[str, Topic | KafkaError]:
        body = {"topics": topics, "allow_auto_topic_creation": False}
        answer = await self.ask(ApiKey.METADATA, body)
        if answer.cluster_id != self.cluster_id:
            self._topics.clear()
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        if answer.brokers:
            self.brokers = {
                b.node_id: BrokerInfo(b.node_id, b.host, b.port, b.rack) for b in answer.brokers
            }
        results: dict[str, Topic | KafkaError] = {}
        now = self._loop.time()
        for result in answer.topics:
            if result.error_code:
                name = result.name or str(result.topic_id)
                self.outdate_topic(name)
                if result.error_code in NO_SUCH_TOPIC:
                    self._topics.pop(name, None)
                results[name] = KafkaError(
                    result.error_code, describe_topic(result.error_code, name)
                )
                continue
            _, cached = self._topics.get(result.name, (now, None))
            topic = keep_newer_leaders(parse_topic(result), cached)
            results[topic.name] = topic
            self._topics[topic.name] = (now, topic)
            if topic.topic_id is not None:
                self._names[topic.topic_id] = topic.name
        return results

    async def get_topics(self, names: Iterable[str]) -> dict[str, Topic | KafkaError]:
        """Return topics from the cache; read missing or expired ones from a broker."""
        oldest = self._loop.time() - self.settings.metadata_max_age_ms / 1000
        unique_names = list(dict.fromkeys(names))
        results: dict[str, Topic | KafkaError] = {}
        missing = []
        for name in unique_names:
            read_at, topic = self._topics.get(name, (float("-inf"), None))
            if topic is None or read_at < oldest:
                missing.append(name)
            else:
                results[name] = topic
        for start in range(0, len(missing), TOPICS_PER_REQUEST):
            part = missing[start : start + TOPICS_PER_REQUEST]
            results.update(await self.retry(lambda part=part: self.refresh(part)))  # type: ignore[misc]
        return results

    async def get_topic(self, name: str) -> Topic:
        """Return one topic. Raises `KafkaError` UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        topic = (await self.get_topics([name]))[name]
        if isinstance(topic, KafkaError):
            raise topic
        return topic

    async def read_all_topics(self) -> dict[str, Topic]:
        """Read every topic of the cluster from a broker."""
        results = await self.retry(lambda: self.refresh(None))
        return {name: t for name, t in sorted(results.items()) if isinstance(t, Topic)}

    async def warn_of_missing_topics(self, names: Iterable[str], group: str) -> None:
        """Log a warning once for each topic that does not exist: its subscriber gets no record, and
        no error either."""
        for name, topic in (await self.get_topics(names)).items():
            is_missing = isinstance(topic, KafkaError) and topic.code in NO_SUCH_TOPIC
            if is_missing and name not in self._missed:
                self._missed.add(name)
                _log.warning(
                    "topic %s does not exist. This member of group %s gets its records once it"
                    " does: create it with `shoal topics create %s`.",
                    name,
                    group,
                    name,
                    extra={"topic": name},
                )

    async def get_topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic id, or None if the topic was deleted."""
        if topic_id not in self._names:
            await self.retry(lambda: self._read_metadata([{"name": None, "topic_id": topic_id}]))
        return self._names.get(topic_id)

    def forget_topic(self, name: str) -> None:
        """Drop a topic's cached metadata that was wrong; the next read uses another broker."""
        self.outdate_topic(name)
        self.doubt()

    def outdate_topic(self, name: str) -> None:
        """Expire a topic's cached metadata; the next use reads it from a broker."""
        _, topic = self._topics.get(name, (0, None))
        if topic is None:
            return
        self._topics[name] = (float("-inf"), topic)
        if topic.topic_id is not None:
            self._names.pop(topic.topic_id, None)

    def forget_topic_id(self, topic_id: UUID) -> None:
        """Call `forget_topic` for the topic with this id."""
        if topic_id in self._names:
            self.forget_topic(self._names[topic_id])

    async def find_leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition. Raises `KafkaError`."""
        leader_id = (await self.get_topic(topic)).get_partition(partition).leader_id
        if leader_id < 0:
            self.forget_topic(topic)
            raise KafkaError(
                ErrorCode.leader_not_available, f"partition {topic}-{partition} has no leader"
            )
        return leader_id

    async def find_leader_epoch(self, topic: str, partition: int) -> int:
        """Return the leader epoch of a partition, -1 if it is not known. A request with it is
        refused by a broker that led before, and by one that does not know of its lead yet."""
        return (await self.get_topic(topic)).get_partition(partition).leader_epoch

    async def find_leaders(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Return the leader of each partition, or its error."""
        requested = list(partitions)
        await self.get_topics(p.topic for p in requested)
        leaders: dict[TopicPartition, int | KafkaError] = {}
        for partition in requested:
            try:
                leaders[partition] = await self.find_leader(*partition)
            except KafkaError as error:
                leaders[partition] = error
        return leaders

    # Coordinators

    async def find_coordinators(
        self, keys: Iterable[str], kind: int = GROUP
    ) -> dict[str, int | KafkaError]:
        """Return the coordinators of groups, transactional ids or share partitions, or errors."""
        unique_keys = list(dict.fromkeys(keys))
        located: dict[str, int | KafkaError] = {}
        missing = [k for k in unique_keys if (kind, k) not in self._coordinators]
        if missing:
            located = await self._locate_coordinators(missing, kind)
        for key, node in located.items():
            if isinstance(node, int):
                self._coordinators[kind, key] = node
        return {k: located.get(k, self._coordinators.get((kind, k), -1)) for k in unique_keys}

    async def _locate_coordinators(self, keys: list[str], kind: int) -> dict[str, int | KafkaError]:
        body = {"key_type": kind, "coordinator_keys": keys}
        answer = await self.ask(ApiKey.FIND_COORDINATOR, body)
        coordinators: dict[str, int | KafkaError] = {}
        for result in answer.coordinators:
            if result.error_code:
                coordinators[result.key] = KafkaError(
                    result.error_code, result.error_message or f"the coordinator of {result.key!r}"
                )
                continue
            coordinators[result.key] = result.node_id
            if result.node_id not in self.brokers:
                self.brokers[result.node_id] = BrokerInfo(result.node_id, result.host, result.port)
        return coordinators

    async def find_coordinator(self, key: str, kind: int = GROUP) -> int:
        """Return a group's coordinator. Raises `KafkaError`, such as COORDINATOR_NOT_AVAILABLE."""
        node = (await self.find_coordinators([key], kind))[key]
        if isinstance(node, KafkaError):
            raise node
        return node

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """Invalidate the cached coordinator; the next lookup uses another broker."""
        self._coordinators.pop((kind, key), None)
        self.doubt()

    def _forget_coordinators_on(self, node_id: int) -> None:
        """Invalidate what is cached of a broker that cannot be reached: its groups and
        transactional ids soon have coordinators elsewhere."""
        kept = {key: node for key, node in self._coordinators.items() if node != node_id}
        if len(kept) < len(self._coordinators):
            self._coordinators = kept
            self.doubt()

    # Calls on many objects

    async def scatter(
        self,
        keys: Iterable[K],
        locate: Callable[[list[K]], Awaitable[Mapping[K, int | KafkaError]]],
        call: Callable[[int, list[K]], Awaitable[Mapping[K, V | KafkaError]]],
        forget: Callable[[K], None],
        timeout_ms: int | None = None,
    ) -> dict[K, V | KafkaError]:
        """Send each object's request to its broker, one call per broker, and retry moved objects.

        An object whose broker stays unreachable until the timeout gets that error. If no broker was
        reached at all, the network error is raised.
        """
        deadline = self._compute_deadline(timeout_ms)
        backoff = self.make_backoff()
        pending = list(dict.fromkeys(keys))
        results: dict[K, V | KafkaError] = {}
        while pending:
            nodes = await self.retry(lambda: locate(pending), timeout_ms)  # noqa: B023
            by_node: dict[int, list[K]] = {}
            again: dict[K, ClientError] = {}
            for key, node in nodes.items():
                if isinstance(node, KafkaError):
                    again[key] = node
                else:
                    by_node.setdefault(node, []).append(key)
            answers = await asyncio.gather(
                *(call(node, node_keys) for node, node_keys in by_node.items()),
                return_exceptions=True,
            )
            for node_keys, answer in zip(by_node.values(), answers, strict=True):
                if isinstance(answer, ClientError):
                    again.update(dict.fromkeys(node_keys, answer))
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    for key in node_keys:
                        value = answer[key]
                        if isinstance(value, KafkaError):
                            again[key] = value
                        else:
                            results[key] = value
            pending = self._sort_out(again, results, forget, self._loop.time() > deadline)
            if pending:
                await backoff.pause()
        return results

    def _sort_out(
        self,
        failed: dict[K, ClientError],
        results: dict[K, V | KafkaError],
        forget: Callable[[K], None],
        late: bool,
    ) -> list[K]:
        """Record final errors as results; return the keys worth another attempt."""
        again = []
        for key, error in failed.items():
            moved = not isinstance(error, KafkaError) or (
                error.code in STALE_METADATA
                or error.code in STALE_COORDINATOR
                or error.code == ErrorCode.request_timed_out
            )
            unknown = isinstance(error, KafkaError) and error.code in NO_SUCH_TOPIC
            if is_transient(error) and moved and not late and not unknown:
                forget(key)
                again.append(key)
            elif isinstance(error, KafkaError):
                results[key] = error
            else:
                raise error
        return again

    async def call_leaders(
        self,
        partitions: Iterable[TopicPartition],
        call: Callable[
            [int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, V | KafkaError]]
        ],
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, V | KafkaError]:
        """Run `scatter` over the leaders of partitions."""
        return await self.scatter(
            partitions, self.find_leaders, call, lambda p: self.forget_topic(p.topic), timeout_ms
        )

    async def call_coordinators(
        self,
        groups: Iterable[str],
        call: Callable[[int, list[str]], Awaitable[Mapping[str, V | KafkaError]]],
        timeout_ms: int | None = None,
    ) -> dict[str, V | KafkaError]:
        """Run `scatter` over the coordinators of groups."""
        return await self.scatter(
            groups, self.find_coordinators, call, self.forget_coordinator, timeout_ms
        )

    async def request_coordinator(
        self,
        group: str,
        api_key: ApiKey,
        body: Mapping[str, Any],
        *,
        lane: str = "",
        pause_ms_max: int = BACKOFF_MS_MAX,
    ) -> Any:
        """Send a request to a group's coordinator; find it again while the response says it moved.

        Raises `KafkaError` for an error code at the top of the response.
        """

        async def attempt() -> Any:
            node = await self.find_coordinator(group)
            try:
                answer = await self.request(node, api_key, body, lane=lane)
            except ClientError:
                self.forget_coordinator(group)
                raise
            code = getattr(answer, "error_code", ErrorCode.none)
            if code in STALE_COORDINATOR:
                self.forget_coordinator(group)
            check(code, getattr(answer, "error_message", None) or f"group {group!r}")
            return answer

        return await self.retry(attempt, pause_ms_max=pause_ms_max)


#: Requests to send at most once: a lost answer may hide a success, and a repeat would fail.
_ONCE = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.CREATE_DELEGATION_TOKEN,
    }
)
#: Requests that change nothing, and that each broker answers at once.
_READS = frozenset({ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER})
#: What to do about a cluster that was never reached, below the error in a traceback.
_UNREACHED = (
    "Start a broker there, for example with `shoal server`, or correct the address: it is"
    " bootstrap.servers, or SHOAL_BOOTSTRAP_SERVERS."
)
