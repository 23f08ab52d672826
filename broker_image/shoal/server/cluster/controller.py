"""The soft state of the active controller: the sessions of brokers, and periodic decisions.

The controller fences a broker that sends no heartbeat for broker.session.timeout.ms. A new active
controller begins a whole session for each broker. A process that has ended is fenced earlier: when
the connection of a broker closes, or its heartbeats are overdue, the controller probes its address
and fences it if nothing listens there. The image has all other state of brokers, and
`metadata.list_brokers` the decisions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.metadata import brokers, elections, internal_topics
from shoal.metadata.controller import ControllerResult
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import BrokerImage, MetadataImage
    from shoal.protocol.responses import quorum as responses
    from shoal.server.cluster.metadata_log import MetadataLog
    from shoal.server.cluster.quorum import MetadataQuorum
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.api import Peer
    from shoal.server.node import Node

#: The interval of the checks of sessions.
_CHECK_MS = 100
#: The interval of the checks whether internal topics can get more replicas. A change of the brokers
#: leads to a check too.
_GROW_MS = 10_000
#: The result of a probe that lasts longer is unknown.
_PROBE_TIMEOUT_S = 1.0
#: A process that keeps a connection open for this time is alive; the pause between two probes.
_SILENT_S, _PROBE_PAUSE_S = 0.2, 0.01


async def is_gone(host: str, port: int) -> bool:
    """Whether nothing listens at that address; False if that is unknown.

    A process that ends closes its sockets one after the other. Its port may still accept a
    connection after others have closed. That one closes at once, and the next one is refused.
    """
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            while not await _is_kept_open(host, port):
                await asyncio.sleep(_PROBE_PAUSE_S)
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False


async def _is_kept_open(host: str, port: int) -> bool:
    """Whether a connection is accepted and stays open. Raises `OSError` if it is refused."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except ConnectionResetError:
        return False
    try:
        async with asyncio.timeout(_SILENT_S):
            await reader.read(1)
    except TimeoutError:
        return True
    except OSError:
        pass
    finally:
        writer.close()
    return False


class Controller:
    """Owns the sessions while this node is the active controller."""

    def __init__(
        self, node: Node, cache: MetadataCache, quorum: MetadataQuorum, metadata: MetadataLog
    ) -> None:
        self._node = node
        self._cache = cache
        self._quorum = quorum
        self._metadata = metadata
        self._heard_ms: dict[int, int] = {}
        #: The epoch that this node led last.
        self._epoch = -1
        #: Brokers that are being fenced, and the metadata offsets at which others were.
        self._fencing: set[int] = set()
        self._fenced_at: dict[int, int] = {}
        self._probes: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._quorum.on_step(self._on_quorum_step)
        self._cache.subscribe(self._on_metadata_changed)
        timers, config = self._node.timers, self._node.config
        timers.call_every(_CHECK_MS, self._check_sessions)
        timers.call_every(_GROW_MS, lambda: self._decide_if_active(internal_topics.grow))
        if config["auto.leader.rebalance.enable"]:
            interval_ms = config["leader.imbalance.check.interval.seconds"] * 1000
            timers.call_every(interval_ms, lambda: self._decide_if_active(elections.balance))
        interval_ms = config["unclean.leader.election.interval.ms"]
        timers.call_every(interval_ms, lambda: self._decide_if_active(elections.elect_unclean))

    def _decide_if_active(self, decide: Callable[[MetadataImage], ControllerResult]) -> None:
        metadata = self._metadata
        if metadata.is_active and len(metadata.newest.brokers) > 1:
            self._submit(decide)

    def _on_metadata_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.brokers:
            self._decide_if_active(internal_topics.grow)

    def _now_ms(self) -> int:
        return int(self._node.loop.time() * 1000)

    def _on_quorum_step(self) -> None:
        """Begin sessions if this node has become the active controller."""
        metadata = self._metadata
        if not metadata.is_active or metadata.epoch == self._epoch:
            return
        self._epoch = metadata.epoch
        now_ms = self._now_ms()
        self._heard_ms = dict.fromkeys(metadata.newest.brokers, now_ms)
        self._fencing.clear()
        self._fenced_at.clear()
        if not self._quorum.alone:
            self._node.log.info("this node is the active controller", epoch=self._epoch)
        for id, broker in metadata.newest.brokers.items():
            if not broker.fenced:
                self._probe(id)
        if metadata.begin(metadata.newest).records:
            self._submit(metadata.begin)

    def _submit(self, decide: Callable[[MetadataImage], ControllerResult]) -> asyncio.Future[Any]:
        """Submit a decision whose response nobody needs."""
        future = self._metadata.submit(decide)
        future.add_done_callback(self._on_decision_done)
        return future

    def _on_decision_done(self, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, ApiError):
            self._node.log.error("a decision of the controller failed", exc_info=error)

    # Brokers.

    def register(self, broker: BrokerImage, *, previous_epoch: int) -> asyncio.Future[Any]:
        """Register a broker, fenced. The future is its epoch."""
        id = broker.broker_id

        def decide(image: MetadataImage) -> ControllerResult:
            present = image.brokers.get(id)
            clean = present is not None and present.broker_epoch == previous_epoch
            return brokers.register(image, broker, clean=clean, alive=self._is_alive(id))

        future = self._metadata.submit(decide)
        if not future.done():
            self._heard_ms[id] = self._now_ms()
        return future

    def _is_alive(self, id: int) -> bool:
        timeout_ms = self._node.config["broker.session.timeout.ms"]
        present = self._metadata.newest.brokers.get(id)
        heard_ms = self._heard_ms.get(id)
        return (
            present is not None
            and not present.fenced
            and heard_ms is not None
            and self._now_ms() - heard_ms < timeout_ms
        )

    def handle_heartbeat(
        self, body: Any, peer: Peer
    ) -> asyncio.Future[responses.BrokerHeartbeatResponse]:
        """Handle the heartbeat of a broker. The future is the response. Raises `ApiError`."""
        metadata, id = self._metadata, body.broker_id
        peer.closed_calls.put(self, lambda: self._probe(id))
        broker = brokers.check_broker_epoch(metadata.newest, id, body.broker_epoch)
        self._heard_ms[id] = self._now_ms()
        # A broker that has not learned of its fencing would still act as leader.
        caught_up = id not in self._fencing and body.current_metadata_offset >= max(
            broker.broker_epoch, self._fenced_at.get(id, -1)
        )
        decide: Callable[[MetadataImage], ControllerResult]
        if body.want_shut_down:
            decide = lambda image: brokers.shut_down(image, id)  # noqa: E731
        elif body.want_fence:
            decide = lambda image: brokers.fence(image, id)  # noqa: E731
        elif broker.fenced and caught_up:
            decide = lambda image: brokers.unfence(image, id)  # noqa: E731
        else:
            decide = lambda _image: ControllerResult()  # noqa: E731

        cordoned = getattr(body, "cordoned_log_dirs", None)

        def decide_all(image: MetadataImage) -> ControllerResult:
            result = decide(image)
            changed = brokers.build_cordon_records(image, id, cordoned)
            return ControllerResult([*changed, *result.records], result.response)

        def respond(_: object) -> responses.BrokerHeartbeatResponse:
            image = metadata.image
            current = image.brokers.get(id)
            stopping = body.want_shut_down and brokers.may_stop(image, id)
            return {
                "error_code": ErrorCode.none,
                "is_caught_up": caught_up,
                "is_fenced": current is None or current.fenced,
                "should_shut_down": stopping,
            }

        return metadata.submit(decide_all, respond)

    def _check_sessions(self) -> None:
        """Fence brokers without heartbeats."""
        metadata = self._metadata
        if not metadata.is_active or not self._node.cluster.clustered:
            return
        now_ms = self._now_ms()
        timeout_ms = self._node.config["broker.session.timeout.ms"]
        overdue_ms = 3 * self._node.config["broker.heartbeat.interval.ms"] // 2
        for id, broker in metadata.newest.brokers.items():
            if broker.fenced:
                continue
            silent_ms = now_ms - self._heard_ms.setdefault(id, now_ms)
            if silent_ms >= timeout_ms:
                self.fence(id, f"not heard of for {timeout_ms} ms")
            elif silent_ms >= overdue_ms:
                self._probe(id)

    def _probe(self, id: int) -> None:
        """Check whether the process of a broker has ended."""
        broker = self._metadata.newest.brokers.get(id)
        if broker is None or broker.fenced or id in self._probes or id == self._node.id:
            return
        endpoint = broker.find_endpoint(self._node.cluster.inter_broker)
        if endpoint is None or not self._metadata.is_active:
            return
        task = asyncio.ensure_future(self._reach(id, endpoint.host, endpoint.port))
        self._probes[id] = task
        task.add_done_callback(lambda _: self._probes.pop(id, None))

    async def _reach(self, id: int, host: str, port: int) -> None:
        if await is_gone(host, port):
            self.fence(id, "its process is gone")

    def fence(self, id: int, why: str) -> None:
        if id in self._fencing:
            return
        self._fencing.add(id)
        self._node.log.warning("a broker is fenced", id=id, why=why)
        future = self._submit(lambda image: brokers.fence(image, id))
        future.add_done_callback(lambda future: self._on_fenced(id, future))

    def _on_fenced(self, id: int, future: asyncio.Future[Any]) -> None:
        self._fencing.discard(id)
        if not future.cancelled() and future.exception() is None:
            self._fenced_at[id] = self._metadata.image.offset
